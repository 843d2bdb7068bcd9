// The check of an argument.

#pragma once

#include <stdexcept>

namespace spec_dec {

// Throws std::invalid_argument unless `holds`.
inline void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

}  // namespace spec_dec
