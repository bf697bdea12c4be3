#include "cli/terminal.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr int kUsualColumns = 80;

std::atomic<int> num_resizes{0};
static_assert(std::atomic<int>::is_always_lock_free);

void OnResize(int) { num_resizes.fetch_add(1); }

bool IsContinuation(char c) { return (c & 0xc0) == 0x80; }  // of a UTF-8 character

}  // namespace

bool IsTerminal(int fd) {
  const char* name = std::getenv("TERM");
  return isatty(fd) == 1 && (name == nullptr || absl::string_view(name) != "dumb");
}

int TerminalColumns(int fd) {
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns;
  return size.ws_col;
}

void CountResizes() {
  struct sigaction action = {};
  action.sa_handler = OnResize;
  action.sa_flags = SA_RESTART;
  sigaction(SIGWINCH, &action, nullptr);
}

int NumResizes() { return num_resizes.load(); }

bool WantsColour(int fd) {
  const char* refused = std::getenv("NO_COLOR");
  return IsTerminal(fd) && (refused == nullptr || *refused == '\0');
}

std::string Coloured(absl::string_view text, int index) {
  // Cyan, green, yellow, magenta, blue, red: readable on black and on white.
  constexpr int kColours[] = {36, 32, 33, 35, 34, 31};
  return absl::StrCat("\x1b[", kColours[static_cast<unsigned>(index) % 6], "m", text, "\x1b[0m");
}

int TextColumns(absl::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuation(c); }));
}

std::string Shortened(absl::string_view text, int columns) {
  constexpr absl::string_view kDots = "...";
  int width = 0;
  size_t fits = 0;  // bytes of the beginning that leaves room for the dots
  for (size_t i = 0; i < text.size(); ++i) {
    if (IsContinuation(text[i])) continue;
    if (width == columns - static_cast<int>(kDots.size())) fits = i;
    if (++width > columns) return absl::StrCat(text.substr(0, fits), kDots.substr(0, columns));
  }
  return std::string(text);
}

}  // namespace muster
