#include "cli/follow_list.h"

#include "common/base/status.h"

namespace muster {

OptionSpec FollowOption() {
  return {.name = "--follow", .help = "go on until the job has ended", .short_name = "-f"};
}

OptionSpec TailOption() {
  return {
      .name = "--tail", .value = "N", .help = "begin with the last N entries", .short_name = "-n"};
}

absl::StatusOr<FollowListOptions> FollowListOptionsOf(const Invocation& invocation) {
  FollowListOptions options{.follow = invocation.Has("--follow")};
  ASSIGN_OR_RETURN(options.tail, invocation.GetInt("--tail", -1, 0));
  return options;
}

}  // namespace muster
