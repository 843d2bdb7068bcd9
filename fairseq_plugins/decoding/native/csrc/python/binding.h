// Conversions between Python and C++. nanobind checks the types, shapes and layouts of arrays by the declared types.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "../transformer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace spec_dec {

template <typename Number, int DIMS>
using Array = nb::ndarray<const Number, nb::ndim<DIMS>, nb::c_contig, nb::device::cpu>;
template <typename Number, int DIMS>
using Maybe = std::optional<Array<Number, DIMS>>;

// Keeps the memory of an array alive. The result must be destroyed with the GIL held, as by a Python object's
// destructor.
template <typename Held>
std::shared_ptr<const void> owner_of(const Held& array) {
    return std::make_shared<Held>(array);
}

inline std::vector<float> floats(const Array<float, 1>& array) { return {array.data(), array.data() + array.size()}; }
inline std::vector<int64_t> integers(const Array<int64_t, 1>& array) {
    return {array.data(), array.data() + array.size()};
}

inline Table table(const Maybe<float, 2>& array, int64_t width) {
    if (!array) return {};
    require(static_cast<int64_t>(array->shape(1)) == width, "a table has another width");
    return {array->data(), static_cast<int64_t>(array->shape(0)), owner_of(*array)};
}

// Returns a numpy array that owns its elements.
template <typename Number>
auto as_numpy(std::vector<Number> values) {
    auto* held = new std::vector<Number>(std::move(values));
    nb::capsule owner(held, [](void* memory) noexcept { delete static_cast<std::vector<Number>*>(memory); });
    return nb::ndarray<nb::numpy, Number, nb::ndim<1>>(held->data(), {held->size()}, owner);
}

void bind_layers(nb::module_& m);
void bind_drafters(nb::module_& m);
void bind_generator(nb::module_& m);

}  // namespace spec_dec
