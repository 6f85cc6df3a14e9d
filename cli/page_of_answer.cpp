#include "cli/page_of_answer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/output.h"
#include "reports/page/page.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

// The search of a document, in the words of a page.
Json search_of_answer(const Json& json) {
  Json search = json;
  const auto in_short = [](const Json& entry) -> Json {
    const Json& report = entry.at("report");
    return {{"seconds", report.at("step").at("seconds").at("value")},
            {"tokens_per_s_per_gpu", report.at("step").at("tokens_per_s_per_gpu").at("value")},
            {"peak_allocated_bytes", report.at("memory").at("peak_allocated_bytes").at("value")},
            {"total_bytes", report.at("memory").value("total_bytes", Json(nullptr))},
            {"fit_probability", report.at("memory").value("fit_probability", Json(nullptr))},
            {"plan", entry.at("plan")}};
  };
  for (Json& entry : search.at("pareto")) entry = in_short(entry);
  for (const char* key : {"best", "riskier"}) {
    if (search.contains(key) && search[key].is_object()) search[key] = in_short(search[key]);
  }
  if (!search.at("best").is_null()) search["best"]["view"] = 0;
  search["neighbours"] = Json::array();
  return search;
}

// A page has room for the plans of so many choices; the others' are in the answer.
constexpr std::size_t kMostPlans = 200;

// Answers of recommend and scale: the whole of them, what moves the step beside it.
void add_answer(Json& page, const char* block, Json answer) {
  for (const char* key : {"schema", "tool", "created", "host"}) answer.erase(key);
  if (answer.contains("sensitivity")) {
    page["sensitivity"] = answer["sensitivity"];
    answer.erase("sensitivity");
  }
  if (answer.contains("choices")) {
    Json& choices = answer["choices"];
    for (std::size_t i = kMostPlans; i < choices.size(); ++i) choices[i]["plan"] = nullptr;
  }
  page[block] = std::move(answer);
}

}  // namespace

namespace {

Json page_of_document(const Json& json, const std::string& file) {
  const bool names_itself =
      json.is_object() && json.contains("schema") && json["schema"].is_string();
  const std::string schema = names_itself ? json["schema"].get<std::string>() : "";
  if (schema == "foreshard.page/1") {
    for (const char* key : {"title", "views", "timelines"}) json.at(key);
    return json;
  }
  Json page = {{"schema", "foreshard.page/1"},
               {"title", file},
               {"selected", 0},
               {"views", Json::array()},
               {"timelines", Json::array()}};
  const auto add_report = [&](const Json& report, const std::string& label) {
    page["views"].push_back({{"label", label}, {"report", report}, {"timeline", nullptr}});
  };
  if (schema == "foreshard.report/1") {
    add_report(json, "forecast");
  } else if (schema == "foreshard.explain/1") {
    add_report(json.at("report"), "forecast");
    page["views"][0]["waterfall"] = json.at("waterfall");
  } else if (schema == "foreshard.search/1") {
    if (!json.at("best").is_null()) add_report(json.at("best").at("report"), "best plan");
    page["search"] = search_of_answer(json);
  } else if (schema == "foreshard.validation/1") {
    add_report(json.at("predicted"), "forecast");
    add_report(json.at("measured"), "measured");
    page["validation"] = json;
    page["validation"]["view"] = 1;
  } else if (schema == "foreshard.accuracy/1") {
    page["accuracy"] = json;
  } else if (schema == "foreshard.recommend/1") {
    for (const char* key : {"terms", "choices", "machines", "rejected", "would_meet"}) json.at(key);
    page["title"] = fmt::format("What to buy for {}", json.at("model").get<std::string>());
    add_answer(page, "recommend", json);
  } else if (schema == "foreshard.scale/1") {
    for (const char* key : {"points", "rejected", "knee_gpus"}) json.at(key);
    const Json& points = json["points"];
    page["title"] =
        fmt::format("{} on {}{}", json.at("model").get<std::string>(),
                    points.empty() ? ""
                                   : fmt::format("{} to {} ", points.front().at("gpus").dump(),
                                                 points.back().at("gpus").dump()),
                    json.at("machine").get<std::string>());
    add_answer(page, "scale", json);
  } else {
    throw ConfigError({file, 1, 1, ""}, "is no answer that can be shown",
                      "one JSON document of predict, explain, search, recommend, scale, validate, "
                      "accuracy or report, with --json");
  }
  for (const char* key : {"tool", "created", "host"}) {
    if (json.contains(key)) page[key] = json[key];
  }
  return page;
}

}  // namespace

Json page_of_answer(const Json& json, const std::string& file) {
  try {
    return page_of_document(json, file);
  } catch (const Json::exception& error) {
    throw ConfigError({file, 1, 1, ""},
                      fmt::format("is no whole answer of foreshard: {}", error.what()));
  }
}

void write_answer_page(const std::string& path, const Json& answer, const std::string& command) {
  Json page = page_of_answer(answer, "");
  page["command"] = command;
  write_file(path, html_page(page));
}

}  // namespace foreshard
