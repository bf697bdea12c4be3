#include "worker/train/device_check.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace muster {
namespace {

constexpr int kNumCopies = 5;  // the best one counts: others share the machine

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// On a CPU the time that this thread had a core: a busy machine must not look like a slow memory.
double DeviceSeconds(const at::Device& device) {
  if (!device.is_cpu()) return WallSeconds();
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// (size, size), fp32 in [-1, 1): the top 24 bits of a linear congruential generator (Knuth's MMIX).
at::Tensor FixedMatrix(int64_t size, uint64_t state, const at::Device& device) {
  std::vector<float> values(size * size);
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = float(state >> 40) * (1.0f / (1 << 23)) - 1.0f;
  }
  return at::from_blob(values.data(), {size, size}, at::kFloat).clone().to(device);
}

// FNV-1a, 64 bits.
std::string Hash(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.cpu().contiguous();
  const auto* data = static_cast<const unsigned char*>(bytes.data_ptr());
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < bytes.nbytes(); ++i) hash = (hash ^ data[i]) * 1099511628211u;
  return absl::StrFormat("%016x", hash);
}

// Of a product that is made several times over; each must give the same bytes.
std::string Fingerprint(const at::Device& device, std::string* error) {
  const int64_t size = device.is_cpu() ? 256 : 2048;
  const int times = device.is_cpu() ? 3 : 8;
  const at::Tensor a = FixedMatrix(size, 1, device), b = FixedMatrix(size, 2, device);
  const std::string fingerprint = Hash(at::matmul(a, b));
  for (int i = 1; i < times; ++i) {
    const std::string again = Hash(at::matmul(a, b));
    if (again == fingerprint) continue;
    *error = absl::StrCat("the same matrix product gave different bytes: ", fingerprint, ", then ",
                          again);
    return "";
  }
  return fingerprint;
}

// 1e9 bytes a second, read and written.
double CopyRate(const at::Device& device) {
  const int64_t size = device.is_cpu() ? int64_t{32} << 20 : int64_t{512} << 20;  // bytes
  const auto options = at::TensorOptions().dtype(at::kByte).device(device);
  const at::Tensor from = at::zeros({size}, options), to = at::zeros({size}, options);
  const auto wait = [&] {
    if (!device.is_cpu()) (void)to[0].item<uint8_t>();
  };
  wait();
  double best = 0;
  for (int i = 0; i < kNumCopies; ++i) {
    const double start = DeviceSeconds(device);
    if (device.is_cpu()) {
      std::memcpy(to.data_ptr(), from.data_ptr(), size);
    } else {
      to.copy_(from);
    }
    wait();
    const double seconds = DeviceSeconds(device) - start;
    if (seconds > 0) best = std::max(best, 2e-9 * double(size) / seconds);
  }
  return best;
}

}  // namespace

std::string CpuModelName(absl::string_view cpuinfo) {
  for (const char* key : {"model name", "Hardware", "CPU part", "cpu"}) {
    for (const absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
      const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
      if (parts.size() == 2 && absl::StripAsciiWhitespace(parts[0]) == key) {
        return std::string(absl::StripAsciiWhitespace(parts[1]));
      }
    }
  }
  return "CPU";
}

DeviceIdentity IdentifyCpu() {
  std::ifstream file("/proc/cpuinfo");
  return {.kind = CpuModelName(std::string{std::istreambuf_iterator<char>(file), {}})};
}

DeviceCheck CheckDevice(const std::string& device, const DeviceIdentity& identity) {
  const double start = WallSeconds();
  DeviceCheck check{.device = device, .kind = identity.kind, .serial = identity.serial};
  try {
    // The bytes of a product depend on how many threads share it.
    at::set_num_threads(1);
    const at::Device where(device);
    check.fingerprint = Fingerprint(where, &check.error);
    if (check.error.empty()) check.copy_gb_per_s = CopyRate(where);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    check.error = text.substr(0, text.find('\n'));
    check.fingerprint.clear();
  }
  check.elapsed_ms = 1e3 * (WallSeconds() - start);
  return check;
}

}  // namespace muster
