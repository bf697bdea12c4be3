// Makes bad requests out of good ones. Deterministic for a seed.
#pragma once

#include <google/protobuf/message.h>

#include <random>
#include <string>

namespace muster {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  bool OneIn(int n) { return Below(n) == 0; }

  // A few bytes changed, inserted, taken away, repeated or cut off.
  void MutateBytes(std::string* bytes);
  // A few fields, at any depth, set to what nobody expects: extreme numbers, huge or empty strings,
  // unknown enum values, many repetitions, nothing at all. It stays a valid message of its type.
  void MutateFields(google::protobuf::Message* message);

 private:
  void MutateField(google::protobuf::Message* message,
                   const google::protobuf::FieldDescriptor* field);
  void SetScalar(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
                 bool add);
  int64_t ExtremeInteger();
  double ExtremeDouble();
  std::string ExtremeString(bool utf8);

  std::mt19937_64 random_;
};

}  // namespace muster
