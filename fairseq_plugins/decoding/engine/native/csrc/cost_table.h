// Seconds by size, as they were measured.

#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace spec_dec {

// Seconds of a call by its rows, linear between measured points and beyond them.
class CostTable {
public:
    // Measurements are never too low: of several the least counts, and more rows never take less time.
    void add(double rows, double seconds) {
        auto place = std::lower_bound(points.begin(), points.end(), std::make_pair(rows, 0.0));
        if (place == points.end() || place->first != rows) place = points.insert(place, {rows, seconds});
        place->second = std::min(place->second, seconds);
        for (size_t i = points.size() - 1; i > 0; --i)
            points[i - 1].second = std::min(points[i - 1].second, points[i].second);
    }

    double seconds(double rows) const {
        if (points.empty()) return 0;
        const auto [before, after] = around(rows);
        return std::max(before->second + (rows - before->first) * slope(rows), 1e-9);
    }

    // Seconds of a further row.
    double slope(double rows) const {
        if (points.empty()) return 0;
        if (points.size() == 1) return points[0].second / points[0].first;
        const auto [before, after] = around(rows);
        return (after->second - before->second) / (after->first - before->first);
    }

    const std::vector<std::pair<double, double>>& measured() const { return points; }

private:
    using Point = std::vector<std::pair<double, double>>::const_iterator;

    // The points of the line that `rows` is on.
    std::pair<Point, Point> around(double rows) const {
        if (points.size() == 1) return {points.begin(), points.begin()};
        auto after = std::upper_bound(points.begin() + 1, points.end() - 1, std::make_pair(rows, HUGE_VAL));
        return {std::prev(after), after};
    }

    std::vector<std::pair<double, double>> points;  // by rows
};

}  // namespace spec_dec
