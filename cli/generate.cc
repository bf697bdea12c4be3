#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/programs.h"

namespace muster {
namespace {

// The model needs torch, which this program does not link: muster-trainer takes over.
int Generate(const Invocation& invocation) {
  for (const char* required : {"--checkpoint", "--prompt"}) {
    if (!invocation.Has(required)) {
      PrintError(absl::StrCat("muster generate needs ", required));
      return kExitUsage;
    }
  }
  std::vector<std::string> words = {ProgramBeside("muster-trainer"), "--generate"};
  for (const OptionSpec& option : invocation.command->options) {
    if (!invocation.Has(option.name)) continue;
    words.push_back(option.name);
    words.push_back(invocation.Get(option.name));
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  PrintError(absl::StrCat("cannot start ", words[0], ": ", strerror(errno)));
  return kExitUsage;
}

}  // namespace

Command GenerateCommand() {
  return {
      .name = "generate",
      .arguments = "--checkpoint DIR --prompt TEXT",
      .help = "continue a text with a trained model",
      .details =
          "Loads a checkpoint with muster-trainer and lets the model continue the prompt. "
          "--checkpoint and --prompt are needed.",
      .options = {{.name = "--checkpoint",
                   .value = "DIR",
                   .help = "folder of checkpoints (its newest), or of one iteration"},
                  {.name = "--prompt", .value = "TEXT", .help = "the text to continue"},
                  {.name = "--max-new-tokens", .value = "N", .help = "how many tokens"},
                  {.name = "--temperature",
                   .value = "T",
                   .help = "of sampling; 0: always the likeliest token"},
                  {.name = "--ckpt-step",
                   .value = "N",
                   .help = "iteration of the checkpoint (default: the newest)"},
                  {.name = "--threads", .value = "N", .help = "CPU threads (default: all cores)"},
                  {.name = "--top-k", .value = "K", .help = "sample from the K likeliest"},
                  {.name = "--seed", .value = "S", .help = "of sampling"}},
      .examples = {{"muster generate --checkpoint runs/a/ckpt --prompt 'In the beginning'",
                    "with the newest checkpoint of a folder"}},
      .failure = "The model could not be loaded or run.",
      .run = Generate};
}

}  // namespace muster
