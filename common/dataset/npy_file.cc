#include "common/dataset/npy_file.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/files/mapped_file.h"

namespace muster {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY\x01\x00", 8);
constexpr size_t kPrefixBytes = 10;  // magic, version, uint16 length of the header text

absl::string_view TypeName(IndexType type) {
  switch (type) {
    case IndexType::kInt32:
      return "<i4";
    case IndexType::kInt64:
      return "<i8";
    case IndexType::kUint32:
      break;
  }
  return "<u4";
}

int64_t TypeSize(IndexType type) { return type == IndexType::kInt64 ? 8 : 4; }

// Product of the shape tuple in a header text; -1 when it cannot be read.
int64_t ElementsOfHeader(absl::string_view header) {
  const size_t open = header.find("'shape': (");
  if (open == absl::string_view::npos) return -1;
  absl::string_view shape = header.substr(open + 10);
  const size_t close = shape.find(')');
  if (close == absl::string_view::npos) return -1;
  int64_t elements = 1;
  for (const absl::string_view part :
       absl::StrSplit(shape.substr(0, close), ',', absl::SkipWhitespace())) {
    int64_t extent = 0;
    if (!absl::SimpleAtoi(part, &extent) || extent < 0) return -1;
    elements *= extent;
  }
  return elements;
}

}  // namespace

absl::StatusOr<IndexArray> IndexArray::Map(const std::string& path) {
  ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  const auto damaged = [&path](const auto&... what) {
    return absl::DataLossError(absl::StrCat(path, ": ", what...));
  };
  const absl::string_view bytes = file->bytes();
  if (bytes.size() < kPrefixBytes || !absl::StartsWith(bytes, kMagic)) {
    return damaged("not a .npy file of format 1.0");
  }
  const size_t header_size = static_cast<uint8_t>(bytes[8]) + 256 * static_cast<uint8_t>(bytes[9]);
  const absl::string_view header = bytes.substr(kPrefixBytes, header_size);
  IndexArray array;
  bool known = false;
  for (const IndexType type : {IndexType::kInt32, IndexType::kInt64, IndexType::kUint32}) {
    if (!absl::StrContains(header, absl::StrCat("'descr': '", TypeName(type), "'"))) continue;
    array.type_ = type;
    known = true;
  }
  if (!known) return damaged("its element type is none of <i4, <i8, <u4");
  if (!absl::StrContains(header, "'fortran_order': False")) return damaged("not in C order");
  array.size_ = ElementsOfHeader(header);
  const int64_t expected =
      static_cast<int64_t>(kPrefixBytes + header_size) + array.size_ * TypeSize(array.type_);
  if (array.size_ < 0 || expected != static_cast<int64_t>(bytes.size())) {
    return damaged("its header asks for ", expected, " bytes, the file has ", bytes.size());
  }
  array.data_ = bytes.data() + kPrefixBytes + header_size;
  array.owner_ = std::move(file);
  return array;
}

absl::Status IndexArray::Write(FileOps& files, const std::string& path, int64_t columns) const {
  const std::string shape = columns == 1 ? absl::StrCat("(", size_, ",)")
                                         : absl::StrCat("(", size_ / columns, ", ", columns, ")");
  std::string header = absl::StrCat("{'descr': '", TypeName(type_),
                                    "', 'fortran_order': False, 'shape': ", shape, ", }");
  // Spaces and a newline, so that the data begins at a multiple of 64 bytes.
  header.append(63 - (kPrefixBytes + header.size()) % 64, ' ');
  header.push_back('\n');

  const std::string aside = absl::StrCat(path, ".partial");
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.Create(aside));
  std::string prefix(kMagic);
  prefix.push_back(static_cast<char>(header.size() & 0xff));
  prefix.push_back(static_cast<char>(header.size() >> 8));
  RETURN_IF_ERROR(file->Append(absl::StrCat(prefix, header)));
  RETURN_IF_ERROR(
      file->Append(absl::string_view(data_, static_cast<size_t>(size_ * TypeSize(type_)))));
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(file->Close());
  return files.Rename(aside, path);
}

std::vector<int64_t> IndexArray::ToVector() const {
  std::vector<int64_t> values(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) values[static_cast<size_t>(i)] = (*this)[i];
  return values;
}

}  // namespace muster
