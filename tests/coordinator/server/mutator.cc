#include "tests/coordinator/server/mutator.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace muster {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void Mutator::MutateBytes(std::string* bytes) {
  const int times = 1 + Below(4);
  for (int i = 0; i < times; ++i) {
    const size_t at = bytes->empty() ? 0 : Below(static_cast<int>(bytes->size()));
    switch (Below(6)) {
      case 0:
        if (!bytes->empty()) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << Below(8)));
        break;
      case 1:
        bytes->insert(at, 1 + Below(16), static_cast<char>(Below(256)));
        break;
      case 2:
        bytes->erase(at, 1 + Below(16));
        break;
      case 3:
        bytes->resize(at);
        break;
      case 4:  // a length or number of ten bytes, the largest there is
        bytes->insert(at, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        break;
      case 5: {  // a part again: a repeated field, or one that comes twice
        const std::string part = bytes->substr(at, 1 + Below(64));
        for (int k = Below(50); k >= 0; --k) bytes->insert(at, part);
        break;
      }
    }
  }
}

void Mutator::MutateFields(Message* message) {
  const int times = 1 + Below(3);
  for (int i = 0; i < times; ++i) {
    // Walks down at random, so that deep fields have their turn.
    Message* at = message;
    while (true) {
      const auto* descriptor = at->GetDescriptor();
      if (descriptor->field_count() == 0) break;
      const FieldDescriptor* field = descriptor->field(Below(descriptor->field_count()));
      const Reflection* reflection = at->GetReflection();
      const bool inner = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map();
      if (inner && !field->is_repeated() && !OneIn(4)) {
        at = reflection->MutableMessage(at, field);
        continue;
      }
      if (inner && field->is_repeated() && reflection->FieldSize(*at, field) > 0 && !OneIn(4)) {
        at =
            reflection->MutableRepeatedMessage(at, field, Below(reflection->FieldSize(*at, field)));
        continue;
      }
      MutateField(at, field);
      break;
    }
  }
}

void Mutator::MutateField(Message* message, const FieldDescriptor* field) {
  const Reflection* reflection = message->GetReflection();
  if (OneIn(6)) {
    reflection->ClearField(message, field);
    return;
  }
  const bool inner = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  if (!field->is_repeated()) {
    if (inner) {
      reflection->MutableMessage(message, field);
    } else {
      SetScalar(message, field, /*add=*/false);
    }
    return;
  }
  const int more = OneIn(8) ? 3'000 : 1 + Below(3);
  for (int i = 0; i < more; ++i) {
    if (!inner) {
      SetScalar(message, field, /*add=*/true);
      continue;
    }
    Message* added = reflection->AddMessage(message, field);
    const int size = reflection->FieldSize(*message, field);
    if (size > 1) added->CopyFrom(reflection->GetRepeatedMessage(*message, field, 0));
  }
}

void Mutator::SetScalar(Message* message, const FieldDescriptor* field, bool add) {
  const Reflection* r = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      const auto value = static_cast<int32_t>(ExtremeInteger());
      return add ? r->AddInt32(message, field, value) : r->SetInt32(message, field, value);
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      const int64_t value = ExtremeInteger();
      return add ? r->AddInt64(message, field, value) : r->SetInt64(message, field, value);
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      const auto value = static_cast<uint32_t>(ExtremeInteger());
      return add ? r->AddUInt32(message, field, value) : r->SetUInt32(message, field, value);
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      const auto value = static_cast<uint64_t>(ExtremeInteger());
      return add ? r->AddUInt64(message, field, value) : r->SetUInt64(message, field, value);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const double value = ExtremeDouble();
      return add ? r->AddDouble(message, field, value) : r->SetDouble(message, field, value);
    }
    case FieldDescriptor::CPPTYPE_FLOAT: {
      const auto value = static_cast<float>(ExtremeDouble());
      return add ? r->AddFloat(message, field, value) : r->SetFloat(message, field, value);
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      return add ? r->AddBool(message, field, OneIn(2)) : r->SetBool(message, field, OneIn(2));
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int value = OneIn(2) ? Below(8) : static_cast<int32_t>(ExtremeInteger());
      return add ? r->AddEnumValue(message, field, value) : r->SetEnumValue(message, field, value);
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string value = ExtremeString(field->type() == FieldDescriptor::TYPE_STRING);
      return add ? r->AddString(message, field, value) : r->SetString(message, field, value);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return;  // not a scalar
  }
}

int64_t Mutator::ExtremeInteger() {
  constexpr std::array<int64_t, 14> kValues = {0,
                                               1,
                                               -1,
                                               2,
                                               3,
                                               127,
                                               1'000,
                                               65'536,
                                               std::numeric_limits<int32_t>::max(),
                                               std::numeric_limits<int32_t>::min(),
                                               int64_t{1} << 32,
                                               int64_t{1} << 62,
                                               std::numeric_limits<int64_t>::max(),
                                               std::numeric_limits<int64_t>::min()};
  return kValues[Below(kValues.size())];
}

double Mutator::ExtremeDouble() {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr std::array<double, 8> kValues = {
      0, -0.0, kInf, -kInf, std::numeric_limits<double>::quiet_NaN(), 1e308, -1e308, 5e-324};
  return kValues[Below(kValues.size())];
}

std::string Mutator::ExtremeString(bool utf8) {
  switch (Below(6)) {
    case 0:
      return "";
    case 1:
      return std::string(1 + Below(100'000), 'x');
    case 2:
      return std::string("\0\n\r\t\x7f\x1b[31m", 10);
    case 3:
      return "../../../etc/passwd";
    case 4:  // deeper than any parser should go
      return std::string(20'000, '[');
    default: {
      std::string text(1 + Below(64), ' ');
      for (char& c : text) c = static_cast<char>(utf8 ? 1 + Below(127) : Below(256));
      return text;
    }
  }
}

}  // namespace muster
