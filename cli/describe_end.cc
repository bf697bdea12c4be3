#include "cli/describe_end.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/command.h"

namespace muster {
namespace {

std::string Cause(const v1::JobStatus& job) {
  // What a job survived that was ended otherwise is no cause of its end.
  const bool failed = job.state() == v1::JOB_STATE_FAILED;
  if (!job.has_cause() || (!failed && !job.reason().empty())) return job.reason();
  const v1::FailureCause& cause = job.cause();
  // The reason begins with the first cause and goes on with what followed.
  std::string text = absl::StartsWith(job.reason(), cause.text()) ? job.reason() : cause.text();
  // Whatever the text leaves out.
  if (cause.has_rank() && !absl::StrContains(text, absl::StrCat("rank ", cause.rank()))) {
    text = absl::StrCat("rank ", cause.rank(), ": ", text);
  }
  if (!cause.node().empty() && !absl::StrContains(text, cause.node())) {
    absl::StrAppend(&text, " (worker ", cause.worker(), " on node ", cause.node(), ")");
  }
  return text;
}

std::string Advice(const v1::JobStatus& job) {
  const std::string& id = job.job_id();
  switch (job.exit_code()) {
    case kExitRerunElsewhere:
      return absl::StrCat("it shall be rerun on other devices: muster restart ", id);
    case kExitValidationFailed:
      return absl::StrCat("a result failed its validation: muster events ", id,
                          " has the evidence");
    case kExitInterrupted:
      return absl::StrCat("muster restart ", id, " submits it again");
    default:
      break;
  }
  std::string rank;
  if (job.has_cause() && job.cause().has_rank()) {
    rank = absl::StrCat(" --rank ", job.cause().rank());
  }
  return absl::StrCat("muster logs ", id, rank, " shows its output, muster restart ", id,
                      " submits it again");
}

}  // namespace

std::string DescribeFirstCause(const v1::JobStatus& job) {
  const std::string cause = Cause(job);
  std::string text = job.job_id();
  if (job.state() == v1::JOB_STATE_CANCELLED) {
    absl::StrAppend(&text, " was cancelled");
  } else if (job.state() == v1::JOB_STATE_EXITED) {
    absl::StrAppend(&text, " left with exit code ", job.exit_code());
  } else {
    absl::StrAppend(&text, " failed");
  }
  return cause.empty() ? text : absl::StrCat(text, ": ", cause);
}

std::string DescribeEnd(const v1::JobStatus& job) {
  return absl::StrCat(DescribeFirstCause(job), "; ", Advice(job));
}

}  // namespace muster
