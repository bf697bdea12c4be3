#include "common/tokenizer/tokenizer.h"

#include "absl/strings/str_cat.h"
#include "common/tokenizer/byte_tokenizer.h"

namespace muster {

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(absl::string_view type,
                                                         const std::optional<std::string>& model) {
  if (type != "byte") {
    return absl::InvalidArgumentError(
        absl::StrCat("data.tokenizer_type=\"", type, "\": this build knows \"byte\""));
  }
  if (model.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.tokenizer_model=\"", *model, "\": the byte tokenizer takes no model"));
  }
  return std::make_unique<ByteTokenizer>();
}

}  // namespace muster
