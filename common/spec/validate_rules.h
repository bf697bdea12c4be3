// The groups of rules behind Validate, one function a theme. Private to this folder.
#pragma once

#include <cstdint>

#include "common/spec/job_spec.h"
#include "common/spec/rule_report.h"

namespace muster {

// Data parallel ranks; 0 while the sizes they follow from are faulty or do not divide world_size.
int64_t DataParallelSize(const JobSpec& spec, const RuleReport& report);
int64_t ExpertDataParallelSize(const JobSpec& spec, const RuleReport& report);

int64_t ExpertTensorSize(const ParallelSpec& parallel);  // expert tensor parallel ranks
int64_t FfnHiddenSize(const ModelSpec& model);           // as given, or its default

void CheckModel(const JobSpec& spec, RuleReport* report);
void CheckProviders(const JobSpec& spec, RuleReport* report);
void CheckData(const JobSpec& spec, RuleReport* report);
void CheckBatches(const JobSpec& spec, RuleReport* report);
void CheckLength(const JobSpec& spec, RuleReport* report);
void CheckPrecision(const JobSpec& spec, RuleReport* report);
void CheckRecompute(const JobSpec& spec, RuleReport* report);
void CheckOptimizer(const JobSpec& spec, RuleReport* report);
void CheckSchedule(const JobSpec& spec, RuleReport* report);
void CheckCheckpoint(const JobSpec& spec, RuleReport* report);
void CheckJob(const JobSpec& spec, RuleReport* report);

void CheckTopology(const JobSpec& spec, RuleReport* report);
void CheckPipeline(const JobSpec& spec, RuleReport* report);
void CheckSplits(const JobSpec& spec, RuleReport* report);  // what tp must divide
void CheckContext(const JobSpec& spec, RuleReport* report);
void CheckExperts(const JobSpec& spec, RuleReport* report);
void CheckRouter(const JobSpec& spec, RuleReport* report);
void CheckSharding(const JobSpec& spec, RuleReport* report);

}  // namespace muster
