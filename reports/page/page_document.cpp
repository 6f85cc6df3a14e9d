// Views are added in the order of their importance; each costs what its JSON takes. First they come
// with their timelines, then without, then not at all. Timelines that are the same (a prefetch that
// changes nothing, say) are stored once.

#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "reports/page/page.h"
#include "reports/view/findings.h"

namespace foreshard {
namespace {

// d3, template, style and code take 0.37 MB; search, scaling and the other blocks about 0.05 MB.
// Further timelines leave room for views without one.
constexpr std::size_t kMostViewBytes = 1'450'000;
constexpr std::size_t kMostFurtherBytes = 1'100'000;
constexpr std::size_t kMostLiveGroups = 24;

Json alive_json(const Findings& findings, const EventNames& names) {
  Json alive = Json::array();
  std::int64_t buffers = 0, bytes = 0;
  for (std::size_t i = 0; i < findings.alive.size(); ++i) {
    const LiveGroup& g = findings.alive[i];
    if (i >= kMostLiveGroups) {
      buffers += g.buffers;
      bytes += g.bytes.count();
      continue;
    }
    alive.push_back(to_json(g, names));
  }
  return {{"groups", std::move(alive)}, {"other_buffers", buffers}, {"other_bytes", bytes}};
}

Json view_json(const PageView& view) {
  const Forecast& forecast = *view.forecast;
  const Findings findings = find_causes(forecast);
  const EventNames names(forecast.graph, forecast.model);
  return {{"label", view.label}, {"plan_yaml", view.plan_yaml}, {"report", to_json(*view.report)},
      {"waterfall", waterfall_json(findings)}, {"communication", communication_json(findings)},
      {"overlap_slowdown_s", findings.overlap_slowdown.seconds()}, {"launch_bound_s", findings.launch_bound.seconds()},
      {"alive_at_peak", alive_json(findings, names)}, {"timeline", nullptr}};
}

}

struct PageDocument::Content {
  Json json;
  std::size_t bytes = 0;                                   // of views and timelines
  std::unordered_map<std::string, std::size_t> timelines;  // by their text
};

PageDocument::PageDocument(std::string title, std::string command) : content_(std::make_unique<Content>()) {
  content_->json = {{"schema", "foreshard.page/1"}, {"title", std::move(title)}, {"command", std::move(command)},
      {"selected", 0}, {"views", Json::array()}, {"timelines", Json::array()}};
}

PageDocument::~PageDocument() = default;

std::size_t PageDocument::add_view(const PageView& view) {
  Json& views = content_->json["views"];
  Json json = view_json(view);
  if (!views.empty()) {  // what all views of a page share stands in the first
    json["report"].erase("assumed");
    json["report"]["memory"].erase("outside");
  }
  json["timeline_left_out"] = false;
  if (has_room()) {
    Json timeline = timeline_json(*view.forecast);
    std::string text = timeline.dump();
    const std::size_t bytes = text.size();
    Json& timelines = content_->json["timelines"];
    const bool fits = content_->bytes + bytes < (views.empty() ? kMostViewBytes : kMostFurtherBytes);
    json["timeline_left_out"] = !fits;
    const auto known = content_->timelines.find(text);
    if (known != content_->timelines.end()) {
      json["timeline"] = known->second;
      json["timeline_left_out"] = false;
    } else if (fits) {
      json["timeline"] = timelines.size();
      content_->timelines.emplace(std::move(text), timelines.size());
      content_->bytes += bytes;
      timelines.push_back(std::move(timeline));
    }
  }
  content_->bytes += json.dump().size();
  views.push_back(std::move(json));
  return views.size() - 1;
}

bool PageDocument::has_room() const { return content_->bytes < kMostViewBytes; }

void PageDocument::select(std::size_t view) { content_->json["selected"] = view; }

void PageDocument::set(const std::string& block, Json value) { content_->json[block] = std::move(value); }

const Json& PageDocument::json() const { return content_->json; }

}
