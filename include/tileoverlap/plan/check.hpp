#pragma once
// The invariants of plans, as code. For tests and for debugging; cost O(bands * runs).

#include <span>
#include <string>
#include <vector>

#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {

// What is wrong with one rank's plan for these counts; empty when it holds:
//  - every copy lies in exactly one row, inside its expert's rows; runs do not overlap
//  - every row of a remote run is in exactly one segment, and no other row is in any
//  - the segments of one run are contiguous on both sides and cut at band borders
//  - the order holds every band once, an expert's bands with a remote row before its purely local ones, no remote band
//  behind local ones that were held back, groups inside one expert
//  - the first and the last segment are one band; segments come in the order in which their bands are done
TILEOVERLAP_API std::vector<std::string> check_plan(const Plan& plan, const RouteCounts& counts);

// What is wrong with the plans of all ranks taken together (each is checked by itself, too):
//  - the staging rows that different ranks write are disjoint, and with the rows of local experts they cover staging
//  - what each rank expects from each other is what the other sends, for dispatch and for return
TILEOVERLAP_API std::vector<std::string> check_plans(std::span<const Plan> plans, const RouteCounts& counts);

}  // namespace tileoverlap
