#include "common/spec/validate.h"

#include "common/spec/validate_rules.h"

namespace muster {

std::vector<SpecProblem> Validate(const JobSpec& spec, const std::set<std::string>& faulty) {
  RuleReport report(spec, faulty);
  for (const auto check : {CheckJob, CheckProviders, CheckModel, CheckTopology, CheckSplits,
                           CheckContext, CheckPipeline, CheckExperts, CheckRouter, CheckSharding,
                           CheckData, CheckBatches, CheckLength, CheckPrecision, CheckRecompute,
                           CheckOptimizer, CheckSchedule, CheckCheckpoint}) {
    check(spec, &report);
  }
  return report.Take();
}

}  // namespace muster
