// What the HTML report's document holds, and how it becomes a page. What a browser makes of it:
// tests/reports/page_test.py.
#include "reports/page/page.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "reports/view/findings.h"
#include "tests/reports/random_plans.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

std::vector<std::int64_t> column(const Json& timeline, const char* name) {
  return timeline["columns"][name].get<std::vector<std::int64_t>>();
}

TEST(PageTimeline, ItsColumnsAreTheTimelineAndItsCauses) {
  RandomPlans plans(21);
  for (int round = 0; round < 20; ++round) {
    const Forecast f = plans.next_forecast();
    const Json t = timeline_json(f);
    const auto sort = column(t, "sort"), issue = column(t, "issue"), start = column(t, "start"),
               arrive = column(t, "arrive"), length = column(t, "length"), by = column(t, "by"),
               place = column(t, "place"), tail = column(t, "tail"), cause = column(t, "cause");
    ASSERT_EQ(sort.size(), f.graph.rows.size());
    const EventNames names(f.graph, f.model);
    const Causes causes(f.graph, f.timeline);
    std::map<std::string, std::int64_t> ends;
    std::int64_t issued = 0;
    for (std::size_t i = 0; i < sort.size(); ++i) {
      const Span& span = f.timeline.spans[i];
      const Json& kind = t["sorts"][static_cast<std::size_t>(sort[i])];
      const std::string stream = kind["stream"].get<std::string>();
      issued += issue[i];
      const std::int64_t begin = ends[stream] + start[i];
      ends[stream] = begin + arrive[i] + length[i];
      EXPECT_EQ(issued, span.issue.nanoseconds());
      EXPECT_EQ(begin, span.start.nanoseconds());
      EXPECT_EQ(begin + arrive[i], span.arrive.nanoseconds());
      EXPECT_EQ(ends[stream], span.end.nanoseconds());
      const std::string where = t["places"][static_cast<std::size_t>(place[i])].get<std::string>();
      EXPECT_EQ(kind["kind"].get<std::string>() + (where.empty() ? "" : " " + where) +
                    t["tails"][static_cast<std::size_t>(tail[i])].get<std::string>(),
          names.of(static_cast<EventId>(i)));
      const Causes::Binding binding = causes.of(static_cast<EventId>(i));
      EXPECT_EQ(t["causes"][static_cast<std::size_t>(cause[i])], to_string(binding.cause));
      EXPECT_EQ(by[i] == 0 ? kNoEvent : static_cast<EventId>(i) - static_cast<EventId>(by[i]), binding.predecessor);
    }
  }
}

TEST(PageTimeline, ItsMemoryIsTheReplayAndKeepsThePeak) {
  RandomPlans plans(22);
  for (int round = 0; round < 20; ++round) {
    const Forecast f = plans.next_forecast();
    const Json t = timeline_json(f);
    const Json& m = t["memory"];
    const auto granule = m["granule"].get<std::int64_t>();
    std::int64_t row = 0, peak = 0, highest = 0;
    std::vector<std::int64_t> now(m["categories"].size());
    for (std::size_t k = 0; k < m["rows"].size(); ++k) {
      row += m["rows"][k].get<std::int64_t>();
      peak += m["peak"][k].get<std::int64_t>() * granule;
      highest = std::max(highest, peak);
      const auto at = static_cast<std::size_t>(row);
      EXPECT_EQ(peak, f.memory.samples[at].peak.count());
      std::int64_t sum = 0;
      for (std::size_t c = 0; c < now.size(); ++c) {
        now[c] += m["categories"][c]["now"][k].get<std::int64_t>() * granule;
        sum += now[c];
      }
      EXPECT_EQ(sum, f.memory.samples[at].now.count());
    }
    EXPECT_EQ(highest, f.memory.peak.count());
  }
}

TEST(PageTimeline, TheCriticalPathEndsTheStepAndHasNoHoles) {
  RandomPlans plans(23);
  for (int round = 0; round < 20; ++round) {
    const Forecast f = plans.next_forecast();
    const auto path = timeline_json(f)["critical_path"].get<std::vector<EventId>>();
    ASSERT_FALSE(path.empty());
    EXPECT_EQ(f.timeline.spans[static_cast<std::size_t>(path.back())].end, f.timeline.period);
    for (std::size_t k = 1; k < path.size(); ++k) EXPECT_LT(path[k - 1], path[k]);
  }
}

struct Made {
  Forecast forecast;
  Report report;
};

Made make(int blocks, const CostModel& costs) {
  Made made{forecast(tiny_model(blocks), tiny_plan(), costs), {}};
  made.report = summarize(made.forecast, costs, 0);
  return made;
}

TEST(PageDocument, EqualTimelinesAreStoredOnceAndEveryViewFindsItsOwn) {
  const CostModel costs(round_cluster(8), round_calibration());
  const Made a = make(2, costs), b = make(3, costs);
  PageDocument page("title", "foreshard report");
  EXPECT_EQ(page.add_view({"a", "", &a.forecast, &a.report}), 0U);
  EXPECT_EQ(page.add_view({"b", "", &b.forecast, &b.report}), 1U);
  EXPECT_EQ(page.add_view({"a again", "", &a.forecast, &a.report}), 2U);
  const Json& json = page.json();
  EXPECT_EQ(json["timelines"].size(), 2U);
  EXPECT_EQ(json["views"][0]["timeline"], json["views"][2]["timeline"]);
  EXPECT_EQ(json["timelines"][json["views"][1]["timeline"].get<std::size_t>()], timeline_json(b.forecast));
}

TEST(PageDocument, StaysBelowItsSizeHoweverManyViewsThereAre) {
  const CostModel costs(round_cluster(8), round_calibration());
  PageDocument page("title", "foreshard report");
  int without = 0;
  for (int blocks = 20; blocks <= 200 && page.has_room(); ++blocks) {
    const Made made = make(blocks, costs);
    const std::size_t view = page.add_view({"", "", &made.forecast, &made.report});
    without += page.json()["views"][view]["timeline_left_out"].get<bool>();
  }
  EXPECT_FALSE(page.has_room());
  EXPECT_GT(without, 3);
  EXPECT_LT(html_page(page.json()).size(), kMostPageBytes);
}

// As hot as they run and on the slowest of eight: what the rows of kernels take, in whole ns.
TEST(PageCosts, OperationsAddUpToWhatTheirRowsTake) {
  const CostModel costs(round_cluster(8), round_calibration());
  const Made made = make(2, costs);
  const Json json = operations_json(made.forecast, costs);
  const EventGraph& graph = made.forecast.graph;
  double kernels = 0;
  std::int64_t rows = 0;
  for (const Row& row : graph.rows) {
    if (graph.kernels_of(graph.works[row.work]).empty()) continue;
    kernels += made.forecast.costs.works[row.work].duration.seconds();
    ++rows;
  }
  const double rounding = 1e-9 * static_cast<double>(rows);
  double shown = json["others_s"].get<double>();
  for (const Json& operation : json["operations"]) shown += operation["total_s"].get<double>();
  EXPECT_GT(kernels, 100 * rounding);
  EXPECT_NEAR(shown, kernels, rounding);
  EXPECT_NEAR(json["total_s"].get<double>(), kernels, rounding);
}

TEST(PageCosts, AFactorThatIsKnownMovesNothing) {
  Calibration calibration = round_calibration();
  for (FactorSpread& spread : calibration.spread) spread.log_sd = 0;
  calibration.spread[static_cast<std::size_t>(Factor::kGemm)].log_sd = 0.1;
  const CostModel costs(round_cluster(8), calibration);
  const Made made = make(2, costs);
  const Json json = sensitivity_json(made.forecast, costs);
  const double step = json["step_s"].get<double>();
  EXPECT_DOUBLE_EQ(step, made.forecast.timeline.period.seconds());
  for (const Json& factor : json["factors"]) {
    if (factor["factor"] == "matrix products") {
      EXPECT_LT(factor["low_s"].get<double>(), step);
      EXPECT_GT(factor["high_s"].get<double>(), step);
    } else {
      EXPECT_DOUBLE_EQ(factor["low_s"].get<double>(), step);
      EXPECT_DOUBLE_EQ(factor["high_s"].get<double>(), step);
    }
  }
  for (const Json& half : json["halved"]) EXPECT_LE(half["seconds"].get<double>(), step);
}

TEST(PageAccuracy, ColumnsAreTheRows) {
  std::vector<AccuracyRow> rows;
  for (int i = 0; i < 30'000; ++i) {
    AccuracyRow row;
    row.id = fmt::format("row {}", i);
    row.quantity = i % 3 == 0 ? "step_time_s" : "peak_mem_alloc_GiB";
    row.measured = 1.0 + i;
    row.predicted = 1.1 * row.measured;
    row.low = row.measured;
    row.high = 1.2 * row.measured;
    row.groups = {{"host", i % 2 == 0 ? "a" : "b"}};
    if (i % 5 == 0) {
      row.scored = false;
      row.reason = "no forecast";
    }
    rows.push_back(row);
  }
  const auto word = [](const Json& column, std::size_t i) {
    return column["words"][column["column"][i].get<std::size_t>()];
  };
  const auto check = [&](const std::vector<AccuracyRow>& given, std::size_t stride) {
    const Json json = accuracy_page_json(given);
    const Json& columns = json["columns"];
    EXPECT_EQ(columns["stride"], stride);
    EXPECT_EQ(json["summary"]["rows"], given.size());
    for (std::size_t i = 0; i < columns["id"].size(); ++i) {
      const AccuracyRow& row = given[i * stride];
      ASSERT_EQ(columns["id"][i], row.id);
      EXPECT_NEAR(columns["predicted"][i].get<double>(), row.predicted, 1e-5 * row.predicted);
      EXPECT_EQ(word(columns["quantity"], i), row.quantity);
      EXPECT_EQ(word(columns["reason"], i), row.reason);
      EXPECT_EQ(word(columns["groups"]["host"], i), row.groups[0].second);
    }
    Json document = {{"schema", "foreshard.page/1"}, {"title", "t"}, {"accuracy", json}};
    EXPECT_LT(html_page(document).size(), kMostPageBytes);
  };
  check(rows, 3);
  rows.resize(100);
  check(rows, 1);
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t times = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

TEST(HtmlPage, TextFromFilesCannotLeaveItsPlace) {
  Json document = {{"schema", "foreshard.page/1"}, {"title", "</title><script>alert(1)</script>@CODE@"},
      {"views", Json::array()}, {"note", "</script><script>alert(2)</script>@D3@ \xff"}};
  const std::string page = html_page(document);
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(page.find("alert(2)</script>"), std::string::npos);
  // Marks within the document are left alone.
  EXPECT_EQ(count(page, "@CODE@"), 2U);  // title, and title within the document
  EXPECT_EQ(count(page, "@D3@"), 1U);
  const std::string_view open = "id=\"document\">";
  const std::size_t begin = page.find(open) + open.size();
  const Json read = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(read["title"], document["title"]);
}

TEST(HtmlPage, NamesItsScriptsByHashAndNothingElse) {
  const Json document = {{"schema", "foreshard.page/1"}, {"title", "t"}};
  const std::string page = html_page(document);
  EXPECT_EQ(count(page, "unsafe"), 0U);
  EXPECT_EQ(count(page, "'sha256-"), count(page, "<script>") + count(page, "<style>"));
  EXPECT_EQ(count(page, "form-action 'none'"), 1U);
}

}
}
