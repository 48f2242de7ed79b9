#pragma once
// Everything public, stage by stage: routing -> plan -> dispatch -> produce -> consume -> reduce, over a transport,
// tied together by execute.

#include "tileoverlap/core/dtype.hpp"
#include "tileoverlap/core/env.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/math.hpp"
#include "tileoverlap/core/tensor.hpp"
#include "tileoverlap/core/timeline.hpp"
#include "tileoverlap/core/version.hpp"
#include "tileoverlap/dispatch/copy_index.hpp"
#include "tileoverlap/execute/cpu_executor.hpp"
#include "tileoverlap/execute/executor.hpp"
#include "tileoverlap/execute/moe_layer.hpp"
#include "tileoverlap/plan/capacity.hpp"
#include "tileoverlap/plan/check.hpp"
#include "tileoverlap/plan/layout.hpp"
#include "tileoverlap/plan/plan.hpp"
#include "tileoverlap/plan/tile_arrays.hpp"
#include "tileoverlap/routing/counts.hpp"
#include "tileoverlap/routing/placement.hpp"
#include "tileoverlap/transport/in_process.hpp"
#include "tileoverlap/transport/transport.hpp"
