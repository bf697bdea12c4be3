// The agent's core beside the coordinator's in one file. Both call what a trainer reported
// TrainerReport, LogLines and ReportBatch, as values of their own: here, and where worker/core is
// compiled for the simulation, the agent's get names of their own.
#pragma once

#include "coordinator/core/types.h"

#ifndef MUSTER_SIM_NODE_NAMES
#define TrainerReport NodeTrainerReport
#define LogLines NodeLogLines
#define ReportBatch NodeReportBatch
#endif
#include "worker/core/agent_machine.h"
#undef TrainerReport
#undef LogLines
#undef ReportBatch
