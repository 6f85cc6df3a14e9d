// Views come in the order of their worth: what was asked for, the best plan, Pareto plans, the
// plans of the heatmap's cells. A plan that several of these name is one view.
#include "cli/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/output.h"
#include "reports/validate/measured.h"
#include "reports/view/plan_words.h"
#include "reports/view/views.h"
#include "sim/base/error.h"
#include "sim/base/parse.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

constexpr std::int64_t kMostScaledGpus = 16384;

std::string plan_label(const Plan& plan) {
  return fmt::format("{}, prefetch {}, reshard {}, recompute {}, {} x {}", words_of(plan.mesh), words_of(plan.prefetch),
      reshard_words(plan), recompute_words(plan), plan.batch.micro_batch, plan.batch.accumulation);
}

// Views by plan.
class Views {
 public:
  Views(PageDocument& page, const Job& job) : page_(page), job_(job), costs_(cost_model(job)) {
    const Json& views = page.json()["views"];
    for (std::size_t i = 0; i < views.size(); ++i) known_.emplace(views[i]["report"]["plan"].dump(), i);
  }

  std::size_t of(const Plan& plan) {
    const std::string key = to_json(plan).dump();
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    const Forecast made = forecast(job_.model, plan, costs_);
    const std::size_t view = add_forecast(page_, job_, made, report_of(job_, made, costs_), plan_label(plan));
    known_.emplace(key, view);
    return view;
  }

 private:
  PageDocument& page_;
  const Job& job_;
  CostModel costs_;
  std::map<std::string, std::size_t> known_;
};

Json candidate_json(const Candidate& c) {
  return {{"seconds", c.seconds}, {"tokens_per_s_per_gpu", c.tokens_per_s_per_gpu},
      {"peak_allocated_bytes", c.peak_allocated.count()},
      {"total_bytes",
          c.peak_reserved.count() > 0 ? Json((c.peak_reserved + c.outside_allocator).count()) : Json(nullptr)},
      {"plan", plan_label(c.plan)}};
}

// What a neighbour of the best plan changes, and what comes of it.
Json neighbour_json(const Candidate& best, const Candidate& other) {
  Json json = candidate_json(other);
  Json changes = json_list(
      plan_differences(best.plan, other.plan), [&](const PlanDifference& d) -> Json { return d.key + " " + d.b; });
  json["changes"] = std::move(changes);
  json["verdict"] = to_string(other.verdict);
  json["step_change"] = other.seconds > 0 ? Json(other.seconds / best.seconds - 1) : Json(nullptr);
  json["peak_change_bytes"] = (other.peak_allocated - best.peak_allocated).count();
  return json;
}

Json prefetch_and_words(const Prefetch& prefetch) {
  Json json = prefetch_json(prefetch);
  json["words"] = words_of(prefetch);
  return json;
}

// The fastest cell of every shard group, then the second of each, and so on: where there is no room
// for all, every group has some.
std::vector<std::size_t> cells_by_worth(const std::vector<HeatmapCell>& cells) {
  using Worth = std::tuple<std::size_t, double, std::size_t>;  // rank within the group, s, cell
  std::map<std::int64_t, std::vector<std::pair<double, std::size_t>>> groups;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const double seconds = cells[i].seconds.value_or(std::numeric_limits<double>::infinity());
    groups[cells[i].shard].emplace_back(seconds, i);
  }
  std::vector<Worth> worths;
  for (auto& [shard, group] : groups) {
    std::ranges::sort(group);
    for (std::size_t rank = 0; rank < group.size(); ++rank)
      worths.emplace_back(rank, group[rank].first, group[rank].second);
  }
  std::ranges::sort(worths);
  return list_of<std::size_t>(worths, [&](const Worth& worth) { return std::get<2>(worth); });
}

// "64" of "64xh100"; 0 for anything else.
std::int64_t counted_gpus(const std::string& spec, std::string& kind) {
  const std::size_t x = spec.find('x');
  if (x == std::string::npos) return 0;
  const auto gpus = parse_number<std::int64_t>({spec.data(), x});
  if (gpus) kind = spec.substr(x + 1);
  return gpus.value_or(0);
}

Json price_json(const Gpu& gpu, const Report& report) {
  if (gpu.price_per_hour <= 0 || report.tokens_per_s_per_gpu.value <= 0) return nullptr;
  const auto per_million = [&](double tokens_per_s) { return gpu.price_per_hour / 3600 / tokens_per_s * 1e6; };
  return {{"usd_per_gpu_hour", gpu.price_per_hour},
      {"usd_per_million_tokens", {{"value", per_million(report.tokens_per_s_per_gpu.value)},
                                     {"low", per_million(report.tokens_per_s_per_gpu.high)},
                                     {"high", per_million(report.tokens_per_s_per_gpu.low)}}},
      {"source", gpu.source}};
}

Json quantity_of(const Quantity& q) { return {{"value", q.value}, {"low", q.low}, {"high", q.high}}; }

}

Json page_json(const PageDocument& page) { return document_json("foreshard.page/1", page.json()); }

void write_page(const std::string& path, const PageDocument& page) { write_file(path, html_page(page_json(page))); }

std::string page_title(const Job& job) {
  return fmt::format(
      "{} on {}", job.model.name, job.cluster.spec.empty() ? job.resolved.plan.cluster : job.cluster.spec);
}

std::size_t add_forecast(
    PageDocument& page, const Job& job, const Forecast& made, const Report& report, const std::string& label) {
  const bool first = page.json()["views"].empty();
  const std::size_t view = page.add_view(
      {label.empty() ? plan_label(made.plan) : label, plan_file_text(job, made.plan, ""), &made, &report});
  if (first) {
    const CostModel costs = cost_model(job);
    page.set("operations", operations_json(made, costs));
    page.set("sensitivity", sensitivity_json(made, costs));
    page.set("price", price_json(job.cluster.gpu, report));
    if (job.cluster.routes) page.set("network", network_json(job.cluster, made.graph.communicators));
  }
  return view;
}

void add_search(PageDocument& page, const Job& job, const JobSearch& found) {
  const SearchResult& result = found.result;
  Views views(page, job);
  Json block = {{"enumerated", result.enumerated}, {"rejected_memory", result.rejected_memory},
      {"simulated", result.simulated}, {"pruned", result.pruned}, {"seconds", found.seconds}, {"best", nullptr}};
  if (result.best) {
    block["best"] = candidate_json(*result.best);
    block["best"]["view"] = views.of(result.best->plan);
  } else if (result.smallest) {
    block["smallest"] = candidate_json(*result.smallest);
    block["smallest"]["view"] = views.of(result.smallest->plan);
  }
  Json pareto = json_list(result.pareto, [&](const Candidate& candidate) -> Json {
    Json json = candidate_json(candidate);
    json["view"] = page.has_room() ? Json(views.of(candidate.plan)) : Json(nullptr);
    return json;
  });
  block["pareto"] = std::move(pareto);
  std::vector<Json> cells(result.heatmap.size());
  for (std::size_t i : cells_by_worth(result.heatmap)) {
    const HeatmapCell& cell = result.heatmap[i];
    Json& json = cells[i];
    json = {{"shard", cell.shard}, {"prefetch", prefetch_and_words(cell.prefetch)}, {"seconds", nullptr},
        {"view", nullptr}};
    if (!cell.seconds) continue;
    json["seconds"] = *cell.seconds;
    if (cell.plan && page.has_room()) json["view"] = views.of(*cell.plan);
  }
  block["heatmap"] = cells;
  if (!found.meshes.empty()) block["meshes"] = Json::array();
  for (const auto& [mesh, seconds] : found.meshes) {
    block["meshes"].push_back({{"tp", mesh.tp}, {"cp", mesh.cp}, {"ep", mesh.ep}, {"etp", mesh.etp}, {"pp", mesh.pp},
        {"seconds", seconds ? Json(*seconds) : Json(nullptr)}});
  }
  Json neighbours = Json::array();
  for (const Candidate& n : result.neighbours)
    if (result.best) neighbours.push_back(neighbour_json(*result.best, n));
  block["neighbours"] = std::move(neighbours);
  page.set("search", std::move(block));
}

void add_scaling(PageDocument& page, const JobOptions& options, const Job& job) {
  std::string kind;
  const std::int64_t gpus = counted_gpus(job.resolved.plan.cluster, kind);
  if (gpus < 1 || !job.cluster_file.empty()) return;
  const Mesh& mesh = job.resolved.plan.mesh;
  Json points = Json::array();
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = gpus; n >= 1 && n * 8 >= gpus; n /= 2) sizes.insert(sizes.begin(), n);
  for (std::int64_t n = gpus * 2; n <= gpus * 16 && n <= kMostScaledGpus; n *= 2) sizes.push_back(n);
  for (std::int64_t n : sizes) {
    JobOptions other = options;
    other.cluster = fmt::format("{}x{}", n, kind);
    const std::int64_t shard = mesh.shard == gpus ? n : std::min(mesh.shard, n);
    other.assignments.push_back({fmt::format("mesh.shard={}", shard)});
    Json point = {{"gpus", n}, {"shard", shard}, {"replicate", n / shard}, {"refused", nullptr}};
    try {
      const Job scaled = load_job(other);
      const CostModel costs = cost_model(scaled);
      const Forecast made = forecast(scaled.model, scaled.resolved.plan, costs);
      const Report report = report_of(scaled, made, costs);
      point["seconds"] = quantity_of(report.seconds);
      point["tokens_per_s_per_gpu"] = quantity_of(report.tokens_per_s_per_gpu);
      point["tokens_per_s"] = report.tokens_per_s_per_gpu.value * as_double(n);
      point["mfu"] = quantity_of(report.mfu);
      point["exposed_communication_s"] = quantity_of(report.exposed_communication);
      point["peak_allocated_bytes"] = static_cast<std::int64_t>(report.peak_allocated.value);
      point["total_bytes"] = (report.fit.outside + report.fit.reserved).count();
      point["fits"] = report.fit.fits();
    } catch (const Error& error) {
      point["refused"] = error.what();
    }
    points.push_back(std::move(point));
  }
  page.set("scaling", {{"batch", "per GPU as it is"}, {"points", std::move(points)}});
}

void add_validation(PageDocument& page, const Forecast& made, const Validation& validation, const RunRecord& record) {
  const Forecast measured = measured_view(made.model, made.plan, made.graph, record);
  Json block = to_json(validation);
  block["scatter"] = scatter_json(made, measured);
  block.erase("predicted");
  block["view"] = page.add_view({"measured: the median step of the first rank", "", &measured, &validation.measured});
  page.set("validation", std::move(block));
}

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
        {"fit_probability", report.at("memory").value("fit_probability", Json(nullptr))}, {"plan", entry.at("plan")}};
  };
  for (Json& entry : search.at("pareto")) entry = in_short(entry);
  for (const char* key : {"best", "riskier"})
    if (search.contains(key) && search[key].is_object()) search[key] = in_short(search[key]);
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

}

namespace {

Json page_of_document(const Json& json, const std::string& file) {
  const bool names_itself = json.is_object() && json.contains("schema") && json["schema"].is_string();
  const std::string schema = names_itself ? json["schema"].get<std::string>() : "";
  if (schema == "foreshard.page/1") {
    for (const char* key : {"title", "views", "timelines"}) json.at(key);
    return json;
  }
  Json page = {{"schema", "foreshard.page/1"}, {"title", file}, {"selected", 0}, {"views", Json::array()},
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
    page["title"] = fmt::format("{} on {}{}", json.at("model").get<std::string>(),
        points.empty() ? ""
                       : fmt::format("{} to {} ", points.front().at("gpus").dump(), points.back().at("gpus").dump()),
        json.at("machine").get<std::string>());
    add_answer(page, "scale", json);
  } else {
    throw ConfigError({file, 1, 1, ""}, "is no answer that can be shown",
        "one JSON document of predict, explain, search, recommend, scale, validate, accuracy or report, with --json");
  }
  for (const char* key : {"tool", "created", "host"})
    if (json.contains(key)) page[key] = json[key];
  return page;
}

}

Json page_of_answer(const Json& json, const std::string& file) {
  try {
    return page_of_document(json, file);
  } catch (const Json::exception& error) {
    throw ConfigError({file, 1, 1, ""}, fmt::format("is no whole answer of foreshard: {}", error.what()));
  }
}

void write_answer_page(const std::string& path, const Json& answer, const std::string& command) {
  Json page = page_of_answer(answer, "");
  page["command"] = command;
  write_file(path, html_page(page));
}

}
