#include "worker/train/rank_times.h"

#include <utility>

#include "worker/comm/op_log.h"

namespace muster {

class RankTimes::TimedIterator final : public DataIterator {
 public:
  TimedIterator(std::unique_ptr<DataIterator> data, std::shared_ptr<absl::Duration> total)
      : data_(std::move(data)), total_(std::move(total)) {}

  absl::StatusOr<Batch> Next() override {
    const int64_t begin = SteadyNanos();
    absl::StatusOr<Batch> batch = data_->Next();
    *total_ += absl::Nanoseconds(SteadyNanos() - begin);
    return batch;
  }

 private:
  const std::unique_ptr<DataIterator> data_;
  const std::shared_ptr<absl::Duration> total_;
};

void RankTimes::Follow(DataIterators& data) {
  for (std::unique_ptr<DataIterator>& iterator : data)
    iterator = std::make_unique<TimedIterator>(std::move(iterator), data_);
}

std::optional<RankTimesMessage> RankTimes::AfterStep(absl::Duration now, absl::Duration waited) {
  ++steps_;
  const absl::Duration elapsed = now - began_;
  if (elapsed < kInterval) return std::nullopt;
  const auto steps = static_cast<double>(steps_);
  const absl::Duration waiting = waited - waited_before_, data = *data_ - data_before_;
  RankTimesMessage message{
      .steps = steps_,
      .compute_ms = absl::ToDoubleMilliseconds(elapsed - waiting - data) / steps,
      .communication_wait_ms = absl::ToDoubleMilliseconds(waiting) / steps,
      .data_ms = absl::ToDoubleMilliseconds(data) / steps};
  began_ = now;
  waited_before_ = waited;
  data_before_ = *data_;
  steps_ = 0;
  return message;
}

}  // namespace muster
