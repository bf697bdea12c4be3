// File operations that fail, or "crash the machine", at a chosen one. After a crash every operation
// is refused, as if the process were gone; LoseUnsynced then takes away what a real disk may lose:
// bytes that were not fsynced, and names whose folder was not. Nothing is really fsynced.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/files/file_ops.h"

namespace muster {

class CrashingFileOps final : public FileOps {
 public:
  enum class Mode {
    kFailOnce,  // the chosen operation fails, later ones work
    kCrash,     // the chosen one is half done (a write) or not done, later ones are refused
  };
  CrashingFileOps(Mode mode, int at_operation) : mode_(mode), at_operation_(at_operation) {}

  bool reached() const { return operations_ > at_operation_; }
  int operations() const { return operations_; }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    RETURN_IF_ERROR(Step("create"));
    const bool is_new = !std::filesystem::exists(path);
    ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, Real().Create(path));
    if (is_new) pending_.push_back({.to = path});
    synced_bytes_[path] = 0;
    return std::make_unique<File>(this, path, std::move(file));
  }
  absl::Status CreateDirectories(const std::string& path) override {
    RETURN_IF_ERROR(Step("create folder"));
    if (!std::filesystem::exists(path)) pending_.push_back({.to = path});
    return Real().CreateDirectories(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    RETURN_IF_ERROR(Step("rename"));
    Pending pending{.from = from, .to = to};
    if (std::filesystem::is_regular_file(to)) pending.overwritten = *ReadWholeFile(to);
    RETURN_IF_ERROR(Real().Rename(from, to));
    std::map<std::string, int64_t> moved;
    for (const auto& [path, bytes] : synced_bytes_) moved[Moved(path, from, to)] = bytes;
    synced_bytes_ = std::move(moved);
    for (Pending& earlier : pending_) earlier.to = Moved(earlier.to, from, to);
    pending_.push_back(std::move(pending));
    return absl::OkStatus();
  }
  absl::Status RemoveAll(const std::string& path) override {
    RETURN_IF_ERROR(Step("remove"));
    return Real().RemoveAll(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    RETURN_IF_ERROR(Step("fsync folder"));
    std::erase_if(pending_, [&](const Pending& p) { return ParentDirectory(p.to) == path; });
    return absl::OkStatus();
  }

  // Names that were not synced are lost, all with seed 0, else half of them, chosen by the seed.
  void LoseUnsynced(uint32_t seed) {
    for (const auto& [path, bytes] : synced_bytes_) {
      if (bytes >= 0 && std::filesystem::exists(path)) std::filesystem::resize_file(path, bytes);
    }
    std::mt19937 random(seed);
    while (!pending_.empty()) {
      const Pending last = std::move(pending_.back());
      pending_.pop_back();
      if (seed == 0 || random() % 2 == 0) Undo(last);
    }
  }

 private:
  struct Pending {                    // a name that is not on the disk yet
    std::optional<std::string> from;  // a rename; nullopt: created
    std::string to;
    std::optional<std::string> overwritten;
  };
  static constexpr int64_t kAllSynced = -1;

  // Where `path` is once `from` is named `to`.
  static std::string Moved(const std::string& path, const std::string& from,
                           const std::string& to) {
    const bool inside = path == from || absl::StartsWith(path, from + "/");
    return inside ? to + path.substr(from.size()) : path;
  }

  void Undo(const Pending& last) {
    if (!std::filesystem::exists(last.to)) return;
    if (!last.from.has_value()) {
      std::filesystem::remove_all(last.to);
      return;
    }
    if (std::filesystem::exists(*last.from)) return;  // taken again since
    std::filesystem::rename(last.to, *last.from);
    for (Pending& earlier : pending_) earlier.to = Moved(earlier.to, last.to, *last.from);
    if (!last.overwritten.has_value()) return;
    auto file = Real().Create(last.to);
    (void)(*file)->Append(*last.overwritten);
  }

  class File final : public WritableFile {
   public:
    File(CrashingFileOps* ops, std::string path, std::unique_ptr<WritableFile> file)
        : ops_(ops), path_(std::move(path)), file_(std::move(file)) {}
    absl::Status Append(absl::string_view bytes) override {
      const bool was_crashed = ops_->crashed_;
      if (absl::Status status = ops_->Step("write"); !status.ok()) {
        if (!was_crashed) (void)file_->Append(bytes.substr(0, bytes.size() / 2));
        return status;
      }
      return file_->Append(bytes);
    }
    absl::Status Sync() override {
      RETURN_IF_ERROR(ops_->Step("fsync"));
      ops_->synced_bytes_[path_] = kAllSynced;
      return absl::OkStatus();
    }
    absl::Status Close() override {
      RETURN_IF_ERROR(ops_->Step("close"));
      return file_->Close();
    }

   private:
    CrashingFileOps* const ops_;
    const std::string path_;
    std::unique_ptr<WritableFile> file_;
  };

  absl::Status Step(absl::string_view operation) {
    const int number = operations_++;
    if (number == at_operation_ && mode_ == Mode::kCrash) crashed_ = true;
    if (crashed_ || number == at_operation_) {
      return absl::ResourceExhaustedError(absl::StrCat("injected at ", operation));
    }
    return absl::OkStatus();
  }

  const Mode mode_;
  const int at_operation_;
  int operations_ = 0;
  bool crashed_ = false;
  std::vector<Pending> pending_;
  std::map<std::string, int64_t> synced_bytes_;  // of files not synced whole; -1: whole
};

}  // namespace muster
