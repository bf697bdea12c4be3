#include "cli/timeline_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/terminal.h"

namespace muster {
namespace {

constexpr int64_t kTickEvery = 5;  // slots, on the axis

std::string Padded(std::string text, size_t width, char fill = ' ') {
  if (text.size() < width) text.append(width - text.size(), fill);
  return text;
}

// Chunks by colour; backward passes in reverse video.
std::string Painted(const std::string& text, const TimelineCell& cell) {
  const std::string coloured = Coloured(text, cell.chunk);
  return cell.backward ? absl::StrCat("\x1b[7m", coloured) : coloured;
}

class TextDrawing {
 public:
  TextDrawing(const Timeline& timeline, const TimelineTextOptions& options)
      : timeline_(timeline), options_(options) {
    label_width_ = absl::StrCat("pp ", timeline.ranks.size() - 1, "  ").size();
    for (const auto& rank : timeline.ranks) {
      for (const TimelineCell& cell : rank) {
        slot_width_ = std::max(slot_width_, CellName(cell, timeline.num_chunks).size());
      }
    }
  }

  std::string Draw() {
    for (int64_t begin = 0; begin < timeline_.num_slots; begin += SlotsOfAPart()) {
      if (begin > 0) text_ += "\n";
      DrawPart(begin, std::min(begin + SlotsOfAPart(), timeline_.num_slots));
    }
    return text_;
  }

 private:
  int64_t SlotsOfAPart() const {
    if (options_.columns == 0) return timeline_.num_slots;
    const int64_t room = options_.columns - static_cast<int64_t>(label_width_);
    const int64_t fit = std::max<int64_t>(room / static_cast<int64_t>(slot_width_), 1);
    if (fit >= timeline_.num_slots || fit < kTickEvery) return fit;
    return fit / kTickEvery * kTickEvery;  // so that each part begins with a number
  }

  void DrawPart(int64_t begin, int64_t end) {
    std::string axis = Padded("slot", label_width_);
    for (int64_t slot = begin; slot < end; ++slot) {
      if (slot % kTickEvery != 0) continue;
      axis = Padded(axis, label_width_ + (slot - begin) * slot_width_);
      absl::StrAppend(&axis, slot);
    }
    absl::StrAppend(&text_, axis, "\n");
    for (size_t rank = 0; rank < timeline_.ranks.size(); ++rank) {
      text_ += Padded(absl::StrCat("pp ", rank), label_width_);
      DrawRow(timeline_.ranks[rank], begin, end);
      text_ += "\n";
    }
  }

  void DrawRow(const std::vector<TimelineCell>& cells, int64_t begin, int64_t end) {
    int64_t drawn = begin;
    for (const TimelineCell& cell : cells) {
      if (cell.slots.end <= begin || cell.slots.begin >= end) continue;
      DrawBubble(std::max(cell.slots.begin, begin) - drawn, false);
      const size_t from = std::max(cell.slots.begin, begin) - cell.slots.begin;
      const size_t to = std::min(cell.slots.end, end) - cell.slots.begin;
      const std::string whole = Padded(CellName(cell, timeline_.num_chunks),
                                       (cell.slots.end - cell.slots.begin) * slot_width_, '-');
      const std::string part = whole.substr(from * slot_width_, (to - from) * slot_width_);
      text_ += options_.colour ? Painted(part, cell) : part;
      drawn = cell.slots.begin + static_cast<int64_t>(to);
    }
    DrawBubble(end - drawn, true);
  }

  void DrawBubble(int64_t num_slots, bool ends_line) {
    for (int64_t i = 0; i < num_slots; ++i) {
      text_ += ends_line && i == num_slots - 1 ? "." : Padded(".", slot_width_);
    }
  }

  const Timeline& timeline_;
  const TimelineTextOptions options_;
  size_t label_width_ = 0, slot_width_ = 1;
  std::string text_;
};

}  // namespace

std::string CellName(const TimelineCell& cell, int num_chunks) {
  std::string name = cell.backward ? "B" : "F";
  if (num_chunks > 1) {
    // Beyond z there are no letters: the number of the chunk then.
    name = cell.chunk < 26
               ? std::string(1, static_cast<char>((cell.backward ? 'A' : 'a') + cell.chunk))
               : absl::StrCat(name, cell.chunk, ".");
  }
  return absl::StrCat(name, cell.microbatch);
}

std::string TimelineText(const Timeline& timeline, const TimelineTextOptions& options) {
  return TextDrawing(timeline, options).Draw();
}

}  // namespace muster
