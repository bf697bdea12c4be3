// Interleaved 1F1B (reference 4.3), one rank's list. Use MakeRankSchedule, which checks the
// options.
#pragma once

#include "common/schedule/pipeline_schedule.h"

namespace muster {

RankSchedule InterleavedSchedule(const ScheduleOptions& options, int pipeline_rank);

}  // namespace muster
