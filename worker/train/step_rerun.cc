#include "worker/train/step_rerun.h"

#include <fcntl.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/files/file_ops.h"
#include "common/runtime/log.h"
#include "worker/train/rank_texts.h"

namespace muster {
namespace {

constexpr double kSpikeFactor = 10;
constexpr char kLossContext[] = "loss";
constexpr char kGradientNorm[] = "local gradient norm";
constexpr double kGradientTolerance = 1e-3;  // of norms of a bucket, between two runs

bool IsNan(double value) { return std::isnan(value); }
bool IsInf(double value) { return std::isinf(value); }

// One line at the end, whole, whoever else writes.
absl::Status AppendTo(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("rerun.result_rejected_tracker_filename=", path,
                     " cannot be appended to: ", std::strerror(error)));
  }
  ::close(fd);
  return absl::OkStatus();
}

std::string FindingText(const RerunMachine& machine) {
  switch (machine.finding()) {
    case RerunFinding::kNothing:
      return "";
    case RerunFinding::kRejected:
      return "its rerun did not come to it";
    case RerunFinding::kNotReproducible:
      return absl::StrCat("run again in place it is ", machine.last_result(),
                          ": a transient error is likely");
    case RerunFinding::kReproducible:
      return "run again in place it is the same: only another device can tell whether it is right";
    case RerunFinding::kSamePlace:
      return "the job came back to the same device, which tells nothing";
    case RerunFinding::kOtherPlaceDiffers:
      return absl::StrCat("on another device it is ", machine.last_result(),
                          ": a persistent error of the first one is likely");
    case RerunFinding::kOtherPlaceAgrees:
      return "on another device it is the same: the result is right, and the data or the model to "
             "blame";
  }
  return "";
}

}  // namespace

StepRerun::StepRerun(const StepRerunOptions& options, const RerunOptions& machine,
                     const Settings& settings)
    : options_{options.job_id, options.rank, options.event, options.report},
      settings_(settings),
      machine_(machine) {}

absl::StatusOr<std::shared_ptr<StepRerun>> StepRerun::Create(const StepRerunOptions& options,
                                                             const StepRerun* earlier) {
  const RerunSpec& spec = options.spec.rerun;
  RerunOptions machine{.rank = options.rank, .place = options.place};
  ASSIGN_OR_RETURN(machine.mode, ParseRerunMode(spec.mode));
  ASSIGN_OR_RETURN(machine.injector.type, ParseInjectedError(spec.error_injection_type));
  machine.injector.rate = spec.error_injection_rate;
  machine.accept_transient = options.report != nullptr;
  machine.injector.seed = static_cast<uint64_t>(options.spec.training.seed);
  // fp16 with a dynamic scale overflows by design: there the scaler handles it.
  const bool overflows =
      options.spec.training.fp16 && !options.spec.training.loss_scale.has_value();
  const Settings settings{.check_for_nan = spec.check_for_nan_in_loss && !overflows,
                          .check_for_spikes = spec.check_for_spiky_loss,
                          .tracker = spec.result_rejected_tracker_filename};
  if (settings.tracker.has_value()) RETURN_IF_ERROR(AppendTo(*settings.tracker, ""));
  std::shared_ptr<StepRerun> rerun(new StepRerun(options, machine, settings));
  RerunRankState learned;
  if (earlier != nullptr) learned.large_values = earlier->machine_.spikes().stats();
  if (!options.large_values.empty()) {
    ASSIGN_OR_RETURN(learned.large_values, MergeLargeValues(options.large_values));
  }
  rerun->machine_.Load({.mode = machine.mode, .current_iteration = 0}, learned);
  if (!options.order_json.empty()) RETURN_IF_ERROR(rerun->Follow(options.order_json));
  return rerun;
}

absl::Status StepRerun::Follow(const std::string& order_json) {
  ASSIGN_OR_RETURN(const ExamineOrder order, DecodeExamineOrder(order_json));
  switch (order.kind) {
    case ExamineOrder::Kind::kRepeat:
      return absl::OkStatus();
    case ExamineOrder::Kind::kAccept:
      machine_.Accept(order.iteration);
      return absl::OkStatus();
    case ExamineOrder::Kind::kRerun:
      break;
  }
  const auto rank = static_cast<size_t>(options_.rank);
  if (rank >= order.rank_jsons.size())
    return absl::InvalidArgumentError("the order about an examined step is of a smaller world");
  ASSIGN_OR_RETURN(const RerunCommonState common, DecodeRerunCommon(order.common_json));
  ASSIGN_OR_RETURN(const RerunRankState state, DecodeRerunRank(order.rank_jsons[rank]));
  machine_.Load(common, state);
  return absl::OkStatus();
}

bool StepRerun::fingerprints_wanted() const {
  return elsewhere() && machine_.mode() == RerunMode::kValidateResults &&
         (machine_.state() == RerunState::kRerunningInPlace ||
          machine_.state() == RerunState::kRerunningFromCheckpoint);
}

void StepRerun::Report(ExamineReport::Stage stage) {
  ExamineReport report{.stage = stage,
                       .iteration = machine_.current_iteration(),
                       .common_json = EncodeRerunCommon(machine_.common()),
                       .rank_json = EncodeRank(),
                       .followed = machine_.failed_call().has_value()};
  if (report.followed) {
    report.finding = absl::StrCat(machine_.failed_call()->message, " (", machine_.initial_result(),
                                  ") ", Where());
    report.differs = machine_.differs();
    report.rejected_again = machine_.rejected_again();
    report.initial_result = machine_.initial_result();
    report.result = machine_.last_result();
  }
  report.run = {.serial = absl::StrCat(machine_.place().node, " ", machine_.place().device),
                .fingerprints = fingerprints_.Take()};
  if (report.run.fingerprints.size() > kMaxFingerprints) {
    report.run.fingerprints.clear();
    report.run.complete = false;
  }
  held_iteration_ = stage == ExamineReport::Stage::kTransient ? 0 : report.iteration;
  options_.report(report.iteration, EncodeExamineReport(report));
}

std::optional<RejectedStep> StepRerun::LeavesBy(const Directive& directive) const {
  const bool mine = directive.kind == Directive::Kind::kCheckpointAndExit &&
                    directive.iteration == held_iteration_ && held_iteration_ > 0;
  if (!mine) return std::nullopt;
  const bool resumes = directive.exit_code == kExitResumeToDisambiguate;
  // In a job that came back to the same device the checkpoint that it came from serves again.
  return RejectedStep{.checkpoint = resumes && machine_.ExitOf().checkpoint,
                      .exit_code = directive.exit_code,
                      .reason = directive.reason};
}

absl::Status StepRerun::Validate(const std::vector<PassResult>& passes, const DataParallel& ddp) {
  std::vector<at::Tensor> losses;
  for (const PassResult& pass : passes) {
    if (pass.loss_sum.defined()) losses.push_back(pass.loss_sum.reshape({}).to(at::kDouble));
  }
  absl::Status status;
  std::vector<double> seen;  // what this rank ends with
  if (!losses.empty()) {
    const at::Tensor read = at::stack(losses).cpu();  // one look at the device for all of them
    for (int64_t i = 0; i < read.numel() && status.ok(); ++i)
      status = ValidateLoss(read.const_data_ptr<double>()[i]);
    if (fingerprints_wanted())
      seen.assign(read.const_data_ptr<double>(), read.const_data_ptr<double>() + read.numel());
  }
  if (status.ok()) status = ValidateProviderChecks(passes);
  if (status.ok() && settings_.check_for_nan) status = ValidateGradients(ddp);
  if (fingerprints_wanted()) {
    for (const DataParallel::LocalNorm& entry : ddp.LocalNorms()) seen.push_back(entry.norm);
    fingerprints_.AddResult(seen);
  }
  WriteTracker();
  return status;
}

absl::Status StepRerun::ValidateLoss(double loss) {
  if (settings_.check_for_nan) {
    RETURN_IF_ERROR(machine_.Validate({.message = "found NaN in the local loss of a microbatch",
                                       .result = loss,
                                       .rejected = IsNan}));
    RETURN_IF_ERROR(machine_.Validate({.message = "found Inf in the local loss of a microbatch",
                                       .result = loss,
                                       .rejected = IsInf}));
  }
  if (!settings_.check_for_spikes) return absl::OkStatus();
  return machine_.Validate({.message = "spiky loss of a microbatch",
                            .result = loss,
                            .rejected =
                                [this](double value) {
                                  return machine_.IsUnexpectedlyLarge(value, kSpikeFactor,
                                                                      kLossContext);
                                },
                            .fatal = false});
}

absl::Status StepRerun::ValidateProviderChecks(const std::vector<PassResult>& passes) {
  for (const PassResult& pass : passes) {
    for (const ProviderCheck& check : pass.checks) {
      if (check.result.numel() != 1 || check.rejected == nullptr || check.message.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the provider's check '", check.message, "' has ", check.result.numel(),
                         " elements; it must have one, a message, and say when it is rejected"));
      }
      RETURN_IF_ERROR(machine_.Validate({.message = check.message,
                                         .result = check.result.item<double>(),
                                         .rejected = check.rejected,
                                         .tolerance = check.tolerance,
                                         .fatal = check.fatal}));
    }
  }
  return absl::OkStatus();
}

absl::Status StepRerun::ValidateGradients(const DataParallel& ddp) {
  for (const DataParallel::LocalNorm& entry : ddp.LocalNorms()) {
    for (const auto& [name, rejects] : {std::pair("NaN", &IsNan), std::pair("Inf", &IsInf)}) {
      RETURN_IF_ERROR(
          machine_.Validate({.message = absl::StrCat("found ", name, " in the ", kGradientNorm,
                                                     " of ", entry.where, ", before the reduction"),
                             .result = entry.norm,
                             .rejected = rejects,
                             .tolerance = kGradientTolerance}));
    }
  }
  return absl::OkStatus();
}

void StepRerun::WriteTracker() {
  for (RejectionRecord& record : machine_.TakeRecords()) {
    if (!options_.job_id.empty()) record.job_id = options_.job_id;
    const std::string line = FormatRejection(record, absl::Now(), absl::LocalTimeZone());
    MUSTER_LOG(kWarning) << "result rejected: " << line;
    options_.event(absl::StrCat("iteration ", record.iteration, ": ", record.message, " (",
                                record.result, ") on rank ", record.rank, ", ", record.node, " ",
                                record.device, ": ", RejectionStatusName(record.status)));
    if (!settings_.tracker.has_value()) continue;
    if (absl::Status status = AppendTo(*settings_.tracker, line + "\n"); !status.ok()) {
      MUSTER_LOG(kError) << status.message();
    }
  }
}

absl::StatusOr<RerunFlags> StepRerun::SumFlags(Communicator& world, c10::Device device) const {
  std::array<int64_t, 4> flags = machine_.flags().ToArray();
  at::Tensor on_host = at::from_blob(flags.data(), {4}, at::kLong);
  at::Tensor sum = on_host.to(device, /*non_blocking=*/false, /*copy=*/true);
  RETURN_IF_ERROR(
      Annotate(world.AllReduce(sum, ReduceOp::kSum)->Wait(), "the decision about a rerun"));
  on_host.copy_(sum);
  return RerunFlags::FromArray(flags);
}

namespace {

// The lowest rank's that blames a loss, else the lowest one's: a bad loss spoils the gradients of
// the stages before it, too. Collective.
absl::StatusOr<std::string> FirstBlame(const std::string& message, std::string mine,
                                       Communicator& world, c10::Device device) {
  if (!mine.empty()) mine.insert(0, absl::StrContains(message, kGradientNorm) ? "1" : "0");
  ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTexts(mine, world, device));
  for (const char kind : {'0', '1'}) {
    for (const std::string& text : all) {
      if (!text.empty() && text[0] == kind) return text.substr(1);
    }
  }
  return std::string("rejected");
}

}  // namespace

std::string StepRerun::Where() const {
  return absl::StrCat("on rank ", options_.rank, ", ", machine_.place().node, " ",
                      machine_.place().device);
}

absl::StatusOr<std::string> StepRerun::Describe(Communicator& world, c10::Device device) const {
  std::string message, mine;
  if (machine_.failed_call().has_value()) {
    message = machine_.failed_call()->message;
    mine = absl::StrCat(message, " (", machine_.initial_result(), ") ", Where(), "; ",
                        FindingText(machine_));
  }
  ASSIGN_OR_RETURN(const std::string blame, FirstBlame(message, std::move(mine), world, device));
  return absl::StrCat("iteration ", machine_.current_iteration(),
                      ": result validation failed: ", blame);
}

absl::Status StepRerun::Refusal(const absl::Status& mine, Communicator& world,
                                c10::Device device) const {
  std::string message(mine.message());
  std::string text = mine.ok() ? "" : absl::StrCat(message, " ", Where());
  ASSIGN_OR_RETURN(const std::string blame, FirstBlame(message, std::move(text), world, device));
  return absl::InternalError(absl::StrCat(
      "iteration ", machine_.current_iteration(), ": result validation failed: ", blame,
      "; rerun.check_for_nan_in_loss=false lets such steps pass"));
}

absl::Status StepRerun::ReportStats(Communicator& world, c10::Device device) {
  std::string mine;
  for (const auto& [message, stats] : machine_.TakeStats()) {
    absl::StrAppend(&mine, message, "\t", stats.identical());
    for (const double sample : stats.samples())
      absl::StrAppend(&mine, " ", absl::StrFormat("%.17g", sample));
    mine += "\n";
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTexts(mine, world, device));
  if (world.rank() != 0) return absl::OkStatus();
  for (const std::string& text : all) {
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(line, absl::MaxSplits('\t', 1));
      const std::vector<std::string> numbers = absl::StrSplit(parts.second, ' ');
      DeterminismStats& stats = all_stats_[parts.first];
      int64_t identical = 0;
      if (!absl::SimpleAtoi(numbers[0], &identical)) continue;
      for (int64_t i = 0; i < identical; ++i) stats.Record(0);
      for (size_t i = 1; i < numbers.size(); ++i) {
        double sample = 0;
        if (absl::SimpleAtod(numbers[i], &sample)) stats.Record(sample);
      }
    }
  }
  for (const auto& [message, stats] : all_stats_) {
    options_.event(absl::StrCat("determinism after iteration ", machine_.current_iteration(), ", ",
                                message, ": ", stats.ToString()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> StepRerun::IterationsToSkip(const JobSpec& spec,
                                                                 Communicator& world,
                                                                 c10::Device device) {
  if (!spec.rerun.result_rejected_tracker_filename.has_value()) return std::vector<int64_t>();
  // Rank 0 reads: others append to the file in the meantime.
  std::string mine;
  if (world.rank() == 0) {
    const auto file = ReadWholeFile(*spec.rerun.result_rejected_tracker_filename);
    if (file.ok()) mine = absl::StrJoin(muster::IterationsToSkip(*file), " ");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTexts(mine, world, device));
  std::vector<int64_t> skip;
  for (const absl::string_view number : absl::StrSplit(all[0], ' ', absl::SkipEmpty())) {
    int64_t iteration = 0;
    if (absl::SimpleAtoi(number, &iteration)) skip.push_back(iteration);
  }
  return skip;
}

// Reads through a log.
class ReplayedData::Iterator final : public DataIterator {
 public:
  explicit Iterator(DataIterator& data) : data_(data) {}
  absl::StatusOr<Batch> Next() override {
    return log_.Next([this] { return data_.Next(); });
  }
  void Rewind() { log_.Rewind(); }
  ReplayState state() const {
    return {.saved_microbatches = static_cast<int64_t>(log_.size()),
            .replaying = log_.replaying(),
            .replay_position = static_cast<int64_t>(log_.position())};
  }

 private:
  DataIterator& data_;
  ReplayLog<Batch> log_;
};

ReplayedData::ReplayedData(const DataIterators& data) {
  for (const auto& iterator : data) iterators_.push_back(std::make_unique<Iterator>(*iterator));
}

std::vector<ReplayState> ReplayedData::states() const {
  std::vector<ReplayState> states;
  for (const auto& iterator : iterators_)
    states.push_back(static_cast<const Iterator&>(*iterator).state());
  return states;
}

void ReplayedData::Rewind() {
  for (const auto& iterator : iterators_) static_cast<Iterator&>(*iterator).Rewind();
}

}  // namespace muster
