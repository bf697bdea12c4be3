#include "cli/timeline_svg.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace muster {
namespace {

// Pixels.
constexpr int kMargin = 20, kLabelWidth = 46, kHeaderHeight = 62, kRowHeight = 30, kRowGap = 4;
constexpr int kAxisHeight = 26, kLegendHeight = 26, kLegendItemWidth = 178;
constexpr int kWantedWidth = 1280, kMinSlotWidth = 8, kMaxSlotWidth = 30, kDigitWidth = 7;
constexpr int kMinWidth = 640;

// Hues a chunk, far apart and of like strength.
constexpr int kHues[] = {212, 152, 32, 280, 350, 96, 186, 320};

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// Forward passes light with dark text, backward passes strong with white text, on any background.
std::string Fill(int chunk, bool backward) {
  const int hue = kHues[static_cast<unsigned>(chunk) % std::size(kHues)];
  return absl::StrFormat("hsl(%d,%d%%,%d%%)", hue, backward ? 52 : 62, backward ? 38 : 76);
}

constexpr char kStyle[] = R"(<style>
svg{--page:#ffffff;--ink:#1f2933;--faint:#66727f;--line:#d5dbe1;--idle:#eef1f4}
@media (prefers-color-scheme:dark){svg{--page:#15191e;--ink:#e6eaee;--faint:#9aa6b2;--line:#333c46;--idle:#232a32}}
text{font-family:system-ui,"Helvetica Neue",Arial,sans-serif;font-size:12px;fill:#1f2933;fill:var(--ink)}
.page{fill:#ffffff;fill:var(--page)}.idle{fill:#eef1f4;fill:var(--idle)}
.grid{stroke:#d5dbe1;stroke:var(--line)}
.title{font-size:16px;font-weight:600}.faint{fill:#66727f;fill:var(--faint)}
.f,.b{font-size:11px;text-anchor:middle}.f{fill:#14202b}.b{fill:#ffffff}
.mid{text-anchor:middle}
</style>
)";

class Picture {
 public:
  Picture(const Timeline& timeline, absl::string_view title, absl::string_view note)
      : timeline_(timeline), num_ranks_(static_cast<int>(timeline.ranks.size())) {
    const int64_t slots = std::max<int64_t>(timeline.num_slots, 1);
    slot_ = static_cast<int>(std::clamp<int64_t>((kWantedWidth - 2 * kMargin - kLabelWidth) / slots,
                                                 kMinSlotWidth, kMaxSlotWidth));
    const int64_t width = std::max<int64_t>(2 * kMargin + kLabelWidth + slots * slot_, kMinWidth);
    items_a_line_ = std::max<int64_t>((width - 2 * kMargin) / kLegendItemWidth, 1);
    const int64_t items = 2 * static_cast<int64_t>(timeline.num_chunks) + 1;
    const int64_t legend_lines = (items + items_a_line_ - 1) / items_a_line_;
    const int64_t height = AxisTop() + kAxisHeight + legend_lines * kLegendHeight + kMargin;
    text_ =
        absl::StrCat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"",
                     height, "\" viewBox=\"0 0 ", width, " ", height, "\" role=\"img\">\n<title>",
                     Escaped(title), "</title>\n", kStyle, "<rect class=\"page\" width=\"", width,
                     "\" height=\"", height, "\" rx=\"8\"/>\n");
    absl::StrAppend(&text_, "<text class=\"title\" x=\"", kMargin, "\" y=\"", kMargin + 12, "\">",
                    Escaped(title), "</text>\n<text class=\"faint\" x=\"", kMargin, "\" y=\"",
                    kMargin + 31, "\">", Escaped(note), "</text>\n");
  }

  std::string Draw() {
    DrawAxis();
    for (int rank = 0; rank < num_ranks_; ++rank) DrawRank(rank);
    DrawLegend();
    return absl::StrCat(text_, "</svg>\n");
  }

 private:
  int64_t X(int64_t slot) const { return kMargin + kLabelWidth + slot * slot_; }
  int Y(int rank) const { return kHeaderHeight + rank * (kRowHeight + kRowGap); }
  int AxisTop() const { return Y(num_ranks_); }

  void DrawAxis() {
    const int64_t every = slot_ >= 20 ? 5 : slot_ >= 12 ? 10 : 20;
    for (int64_t slot = 0; slot <= timeline_.num_slots; slot += every) {
      absl::StrAppend(&text_, "<line class=\"grid\" x1=\"", X(slot), "\" x2=\"", X(slot),
                      "\" y1=\"", kHeaderHeight - 4, "\" y2=\"", AxisTop() + 4,
                      "\"/>\n<text class=\"faint mid\" x=\"", X(slot), "\" y=\"", AxisTop() + 18,
                      "\">", slot, "</text>\n");
    }
    absl::StrAppend(&text_, "<text class=\"faint\" x=\"", kMargin, "\" y=\"", AxisTop() + 18,
                    "\">slot</text>\n");
    if (timeline_.num_slots % every == 0) return;
    absl::StrAppend(&text_, "<line class=\"grid\" x1=\"", X(timeline_.num_slots), "\" x2=\"",
                    X(timeline_.num_slots), "\" y1=\"", kHeaderHeight - 4, "\" y2=\"",
                    AxisTop() + 4, "\"/>\n");
  }

  void DrawRank(int rank) {
    absl::StrAppend(&text_, "<text x=\"", kMargin, "\" y=\"", Y(rank) + 20, "\">pp ", rank,
                    "</text>\n<rect class=\"idle\" x=\"", X(0), "\" y=\"", Y(rank), "\" width=\"",
                    timeline_.num_slots * slot_, "\" height=\"", kRowHeight, "\" rx=\"3\"/>\n");
    for (const TimelineCell& cell : timeline_.ranks[rank]) DrawCell(cell, Y(rank));
  }

  void DrawCell(const TimelineCell& cell, int y) {
    const int64_t width = (cell.slots.end - cell.slots.begin) * slot_;
    absl::StrAppend(&text_, "<g><title>", cell.backward ? "backward" : "forward");
    if (timeline_.num_chunks > 1) absl::StrAppend(&text_, ", chunk ", cell.chunk);
    absl::StrAppend(&text_, ", microbatch ", cell.microbatch, ", slots ", cell.slots.begin, " to ",
                    cell.slots.end, "</title><rect x=\"", X(cell.slots.begin), ".5\" y=\"", y,
                    "\" width=\"", width - 1, "\" height=\"", kRowHeight, "\" rx=\"3\" fill=\"",
                    Fill(cell.chunk, cell.backward), "\"/>");
    const std::string name = absl::StrCat(cell.microbatch);
    if (static_cast<int64_t>(name.size()) * kDigitWidth + 1 < width) {
      absl::StrAppend(&text_, "<text class=\"", cell.backward ? "b" : "f", "\" x=\"",
                      X(cell.slots.begin) + width / 2, "\" y=\"", y + 19, "\">", name, "</text>");
    }
    absl::StrAppend(&text_, "</g>\n");
  }

  void DrawLegend() {
    for (int chunk = 0; chunk < timeline_.num_chunks; ++chunk) {
      const std::string of =
          timeline_.num_chunks > 1 ? absl::StrCat(" of chunk ", chunk) : std::string();
      DrawLegendItem(absl::StrCat("fill=\"", Fill(chunk, false), "\""),
                     absl::StrCat("forward", of));
      DrawLegendItem(absl::StrCat("fill=\"", Fill(chunk, true), "\""),
                     absl::StrCat("backward", of));
    }
    DrawLegendItem("class=\"idle\"", "bubble");
  }

  void DrawLegendItem(absl::string_view paint, absl::string_view name) {
    const int64_t x = kMargin + num_items_ % items_a_line_ * kLegendItemWidth;
    const int64_t y = AxisTop() + kAxisHeight + num_items_ / items_a_line_ * kLegendHeight + 8;
    ++num_items_;
    absl::StrAppend(&text_, "<rect ", paint, " x=\"", x, "\" y=\"", y,
                    "\" width=\"22\" height=\"14\" rx=\"3\"/>\n<text x=\"", x + 30, "\" y=\"",
                    y + 11, "\">", name, "</text>\n");
  }

  const Timeline& timeline_;
  const int num_ranks_;
  int slot_ = kMaxSlotWidth;  // its width
  int64_t items_a_line_ = 1, num_items_ = 0;
  std::string text_;
};

}  // namespace

std::string TimelineSvg(const Timeline& timeline, absl::string_view title, absl::string_view note) {
  return Picture(timeline, title, note).Draw();
}

}  // namespace muster
