// The contract of communicator.h as checks that every rank runs, over any backend: gtest cannot
// report from a forked child, so a rank collects complaints and its parent reports them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/comm/communicator.h"

namespace muster {

class Complaints {
 public:
  void Expect(bool holds, const std::string& claim) {
    if (!holds) lines_.push_back(claim);
  }
  void ExpectOk(const absl::Status& status, const std::string& what) {
    Expect(status.ok(), what + ": " + status.ToString());
  }
  void ExpectEqual(const at::Tensor& got, const at::Tensor& want, const std::string& what);
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

// Every rank of a world runs one of these.
using RankBody = std::function<void(Communicator& world, Complaints& complaints)>;

// Every operation, for sizes 0, 1, odd and large, against values worked out here.
void CheckCollectives(Communicator& world, at::ScalarType dtype, at::Device device,
                      Complaints& complaints);
// Batches in every order, to all peers and to oneself; two in flight whose ends cross.
void CheckPointToPoint(Communicator& world, at::ScalarType dtype, at::Device device,
                       Complaints& complaints);
// Each channel keeps an order of its own: the two sides of a pair issue them differently, with many
// large messages pending.
void CheckChannels(Communicator& world, at::Device device, Complaints& complaints);
// Many operations pending at a time, waited for in another order; IsDone; handles dropped.
void CheckPending(Communicator& world, at::Device device, Complaints& complaints);
// Halves, pairs, reversed and equal groups, a group of one; operations on several at a time.
void CheckSplit(Communicator& world, at::Device device, Complaints& complaints);
// The same inputs give the same bits on every rank and every time.
void CheckRepeatedBits(Communicator& world, at::Device device, Complaints& complaints);
// A wrong call of one rank is refused with a message, and the group is dead afterwards, for all.
void CheckRefusals(Communicator& world, at::Device device, Complaints& complaints);

}  // namespace muster
