#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "cli/terminal.h"
#include "cli/timeline_svg.h"
#include "cli/timeline_text.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Timeline Make(int pp, int v, int m) {
  ScheduleOptions options;
  options.pp = pp;
  options.virtual_pp = v;
  options.num_microbatches = m;
  options.overlap_p2p_comm = v > 1;
  return *MakeTimeline(options, *MakePipelineSchedule(options));
}

TEST(TimelineTextTest, FourStages) {
  EXPECT_EQ(TimelineText(Make(4, 1, 4), {}),
            "slot  0         5         10        15        20\n"
            "pp 0  F0F1F2F3. . . . . . B0--. B1--. B2--. B3--\n"
            "pp 1  . F0F1F2. . . . B0--F3B1--. B2--. B3--. .\n"
            "pp 2  . . F0F1. . B0--F2B1--F3B2--. B3--. . . .\n"
            "pp 3  . . . F0B0--F1B1--F2B2--F3B3--. . . . . .\n");
}

TEST(TimelineTextTest, ChunksHaveLetters) {
  EXPECT_EQ(TimelineText(Make(2, 2, 2), {}),
            "slot  0         5         10\n"
            "pp 0  a0a1b0b1. . B0--. B1--A0--A1--\n"
            "pp 1  . a0a1b0B0--b1B1--A0--A1--. .\n");
}

TEST(TimelineTextTest, LongNumbersWidenTheSlots) {
  const std::string text = TimelineText(Make(2, 1, 11), {});
  EXPECT_THAT(text, HasSubstr("pp 0  F0-F1-.  .  B0----F2-"));
  EXPECT_THAT(text, HasSubstr("F10"));
}

TEST(TimelineTextTest, PartsFitTheWidthAndLoseNothing) {
  const Timeline timeline = Make(4, 2, 12);
  std::string joined[4];
  const std::string text = TimelineText(timeline, {.columns = 60});
  for (const absl::string_view line : std::vector<absl::string_view>(absl::StrSplit(text, '\n'))) {
    EXPECT_LE(line.size(), 60u) << line;
    if (line.substr(0, 3) == "pp ") joined[line[3] - '0'] += std::string(line.substr(6));
  }
  // Together the rows of the parts are those of the one long drawing.
  const std::vector<std::string> whole = absl::StrSplit(TimelineText(timeline, {}), '\n');
  for (int rank = 0; rank < 4; ++rank) {
    std::string a = joined[rank], b = whole[rank + 1].substr(6);
    for (std::string* row : {&a, &b}) std::erase(*row, ' ');
    EXPECT_EQ(a, b);
  }
}

TEST(TimelineTextTest, NarrowTerminalsGetASlotALineAtLeast) {
  EXPECT_THAT(TimelineText(Make(2, 1, 1), {.columns = 1}), HasSubstr("pp 0  F0\n"));
}

TEST(TimelineTextTest, ColourChangesNothingElse) {
  const Timeline timeline = Make(4, 2, 8);
  std::string plain, coloured = TimelineText(timeline, {.colour = true});
  EXPECT_THAT(coloured, HasSubstr(Coloured("b0", 1)));
  bool escape = false;
  for (const char c : coloured) {
    if (c == '\x1b') escape = true;
    if (!escape) plain += c;
    if (c == 'm') escape = false;
  }
  EXPECT_EQ(plain, TimelineText(timeline, {}));
}

size_t Count(const std::string& text, absl::string_view what) {
  return std::vector<absl::string_view>(absl::StrSplit(text, what)).size() - 1;
}

TEST(TimelineSvgTest, EveryPassIsDrawnOnceAndExplained) {
  const std::string svg = TimelineSvg(Make(4, 2, 8), "title <1> & more", "note");
  EXPECT_EQ(Count(svg, "<title>forward, chunk"), 4u * 2 * 8);
  EXPECT_EQ(Count(svg, "<title>backward, chunk"), 4u * 2 * 8);
  EXPECT_THAT(svg, AllOf(HasSubstr("title &lt;1&gt; &amp; more"), HasSubstr("forward of chunk 1"),
                         HasSubstr("bubble"), HasSubstr("prefers-color-scheme:dark")));
  // Opened elements are closed, and it needs nothing from elsewhere.
  EXPECT_EQ(Count(svg, "<g>"), Count(svg, "</g>"));
  EXPECT_EQ(Count(svg, "<text "), Count(svg, "</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  EXPECT_EQ(Count(svg, "http"), 1u);  // the name space
}

// Numbers that do not fit their pass are left out.
TEST(TimelineSvgTest, LongSchedulesStaySmall) {
  const std::string svg = TimelineSvg(Make(2, 1, 200), "long", "");
  EXPECT_THAT(svg, Not(HasSubstr("class=\"f\" x=\"1266\"")));
  EXPECT_EQ(Count(svg, "<title>forward, microbatch"), 400u);
  EXPECT_EQ(Count(svg, "class=\"f\""), 0u);
}

}  // namespace
}  // namespace muster
