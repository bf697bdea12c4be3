// What a command writes to: a terminal of some width, or a file or pipe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// Whether `fd` is a terminal that can redraw a line.
bool IsTerminal(int fd);
// Columns of the terminal `fd`; 80 where it does not say.
int TerminalColumns(int fd);

// From now on the changes of the window's size (SIGWINCH) are counted.
void CountResizes();
int NumResizes();

// Whether to colour what goes to `fd`: a terminal, and NO_COLOR is not set (no-color.org).
bool WantsColour(int fd);
// `text` in one of six colours, the same for the same `index`. Pure.
std::string Coloured(absl::string_view text, int index);

// Characters of UTF-8 `text`, one a column. Pure.
int TextColumns(absl::string_view text);
// At most `columns` characters of `text`; what is cut ends in "...". Pure.
std::string Shortened(absl::string_view text, int columns);

}  // namespace muster
