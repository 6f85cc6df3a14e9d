// The report as one HTML file: what a page shows, as one JSON document, and that document inlined
// into the page's template with its style, its code and d3. A browser needs nothing else.
//
// Document (schema foreshard.page/1): title, command; views, each one forecast, of which `selected`
// is shown first; timelines, which views refer to by index; and, each where there is one: search,
// scaling, sensitivity, validation, accuracy. Every number that the page shows is in it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "reports/accuracy/accuracy.h"
#include "reports/report.h"
#include "sim/base/json.h"
#include "sim/cost/cost_model.h"

namespace foreshard {

// A page, d3 and its own code included, stays below this; what does not fit is left out and said.
inline constexpr std::size_t kMostPageBytes = 2'000'000;

// One forecast: its report, where its time goes, who is alive at its memory peak, and its plan as a file.
struct PageView {
  std::string label;
  std::string plan_yaml;
  const Forecast* forecast = nullptr;
  const Report* report = nullptr;
};

// The document of a page while it is put together.
class PageDocument {
 public:
  PageDocument(std::string title, std::string command);
  ~PageDocument();

  // Its index. Timeline and memory come along as long as the page has room for them.
  std::size_t add_view(const PageView& view);
  bool has_room() const;  // for another view
  void select(std::size_t view);
  // "search", "scaling", "sensitivity", "validation", "accuracy".
  void set(const std::string& block, Json value);

  const Json& json() const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

// Every event of the step in columns, what bound it, the gaps of the compute stream, the critical
// path; and memory by category over the events. Encoding: reports/page/page_timeline.cpp.
Json timeline_json(const Forecast& forecast);
// Kernels of the step with their work, bytes and time, longest first; and the GPU's two roofs.
Json operations_json(const Forecast& forecast, const CostModel& costs);
// What the step would take if one latent factor were at either end of its 90 % interval while the
// others stay where they are best known. One for each Factor, in its order.
struct FactorMove {
  Factor factor = Factor::kGemm;
  double high_factor = 1;  // the low one is its inverse
  double low = 0;          // s
  double high = 0;         // s
};
std::vector<FactorMove> factor_moves(const Forecast& forecast, const CostModel& costs);
const char* factor_words(Factor factor);  // "matrix products"
// What the step would take if one of the machine's latent factors were at either end of its 90 %
// interval, if one class of work took half its time, and on a machine changed in one property.
Json sensitivity_json(const Forecast& forecast, const CostModel& costs);
// Forecast and measurement of every event: {id, predicted_s, measured_s} in columns.
Json scatter_json(const Forecast& forecast, const Forecast& measured);

// accuracy_json with its rows in columns and the groups of every row, so that the page can colour
// and filter by them. Encoding: reports/page/page_accuracy.cpp.
Json accuracy_page_json(const std::vector<AccuracyRow>& rows);

// The page. `document` is a PageDocument's, or has at least `schema` and `title`.
std::string html_page(const Json& document);

}
