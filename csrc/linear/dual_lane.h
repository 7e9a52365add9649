// A lane of the blocked dual solver (dual.h): the label it works on and how far that is.
#pragma once

#include <cstdint>

#include "linear/problem.h"

namespace xmc::linear {

struct Lane {
  int64_t label = kNoLabel;
  bool busy = false;
  double limit = 0;      // the bound on |g|: the stopping rule's, later that of |w - w*| if lower
  int32_t met = 0;       // the round that met the stopping rule itself, 0: none yet
  double factor = 1;     // inner tolerance of later rounds, in units of limit
  double tolerance = 0;  // inner tolerance of this round
  double violation = 0;  // of the dual's optimality, after this round's full pass
  bool eager = false;    // this round's full pass takes steps
  bool warm = false;     // it started from an earlier solution
  int32_t rounds = 0;
  int32_t epochs = 0;
  double seconds = 0;
};

}  // namespace xmc::linear
