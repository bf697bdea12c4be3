#include "worker/agent/device.h"

#include <dirent.h>

#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster {

absl::StatusOr<std::vector<DeviceSlot>> ParseDevices(absl::string_view flag, int slots,
                                                     int num_cuda_devices) {
  std::vector<DeviceSlot> result;
  if (flag == "cpu") {
    if (slots < 1 || slots > 1024) {
      return absl::InvalidArgumentError(absl::StrCat("--slots=", slots, ": must be 1 to 1024"));
    }
    for (int i = 0; i < slots; ++i) result.push_back({"cpu", i});
    return result;
  }
  if (slots != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slots=", slots, ": only --device cpu has slots; a CUDA device is one"));
  }
  if (flag == "cuda:all") {
    if (num_cuda_devices == 0) {
      return absl::FailedPreconditionError(
          "--device=cuda:all: this machine shows no NVIDIA device (/dev/nvidiaN)");
    }
    for (int i = 0; i < num_cuda_devices; ++i) result.push_back({absl::StrCat("cuda:", i), i});
    return result;
  }
  std::set<int> seen;
  for (absl::string_view item : absl::StrSplit(flag, ',')) {
    absl::string_view number = item;
    const bool prefixed = absl::ConsumePrefix(&number, "cuda:");
    int ordinal = 0;
    if ((!prefixed && result.empty()) || !absl::SimpleAtoi(number, &ordinal) || ordinal < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--device=", flag, ": must be cpu, cuda:N, cuda:all or a list such as cuda:0,cuda:1"));
    }
    if (!seen.insert(ordinal).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--device=", flag, ": cuda:", ordinal, " is named twice"));
    }
    result.push_back({absl::StrCat("cuda:", ordinal), ordinal});
  }
  return result;
}

int CountCudaDevices() {
  DIR* folder = opendir("/dev");
  if (folder == nullptr) return 0;
  int count = 0;
  while (const dirent* entry = readdir(folder)) {
    absl::string_view name = entry->d_name;
    int ordinal;
    if (absl::ConsumePrefix(&name, "nvidia") && absl::SimpleAtoi(name, &ordinal)) ++count;
  }
  closedir(folder);
  return count;
}

}  // namespace muster
