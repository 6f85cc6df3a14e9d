// calibrate: read the raw files, fit, write the profile, say how good it is. Tables of products
// (*.csv) make a profile of their GPU out of the shipped one.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "calibration/fit/fit_device.h"
#include "calibration/fit/fit_local.h"
#include "calibration/profile.h"
#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "interop/steps/measured_tables.h"
#include "planner/local_profiles.h"
#include "reports/view/layout.h"
#include "sim/base/error.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

std::string error_cell(const CurveReport& report, std::size_t index, double FitError::*value) {
  return report.errors.size() > index ? percent_text(report.errors[index].*value) : "-";
}

// Of the dtypes that were measured.
std::string rates_text(const LocalVariant& variant) {
  std::string text;
  const auto add = [&](const GemmCurve& curve, FlopsPerSecond peak, const char* dtype) {
    if (curve.evidence == Evidence::kAssumed) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", format_flop_rate(peak), dtype);
  };
  add(variant.calibration.gemm_fp32, variant.peak_fp32, "fp32");
  add(variant.calibration.gemm_bf16, variant.peak_bf16, "bf16");
  return text;
}

std::string variant_text(const LocalVariant& variant, const VariantReport& report, const Paint& paint) {
  std::string text =
      "\n" + paint.bold(fmt::format("{} rank{} at once", variant.ranks, variant.ranks == 1 ? "" : "s")) +
      fmt::format(": best {}; copies {} per rank\n", rates_text(variant), format_bandwidth(variant.memory_bandwidth));
  std::vector<std::vector<std::string>> rows = {{"curve", "points", "median", "90 %", "left out", "90 %"}};
  for (const CurveReport& curve : report.curves) {
    rows.push_back(
        {curve.curve, curve.rows, error_cell(curve, 0, &FitError::median), error_cell(curve, 0, &FitError::p90),
            error_cell(curve, 1, &FitError::median), error_cell(curve, 1, &FitError::p90)});
  }
  for (const std::string& line : aligned(rows)) text += "  " + line + "\n";
  const Calibration& c = variant.calibration;
  text += fmt::format(
      "  host: {} per row, {} per hook, {} more per collective; overlap slows compute x{:.2f}, communication x{:.2f}\n",
      format_time(Time::seconds(c.host.per_row)), format_time(Time::seconds(c.host.per_hook)),
      format_time(Time::seconds(c.host.per_collective)), c.contention.compute, c.contention.communication);
  for (const std::string& gap : report.gaps) text += "  " + paint.yellow("not measured: " + gap) + "\n";
  return text;
}

std::string answer_text(const LocalFit& fit, const std::string& path, const Paint& paint) {
  const LocalProfile& profile = fit.profile;
  std::string text = paint.bold(profile.host.cpu) +
                     fmt::format(
                         ", {} cores, {}, measured {} with {} thread{} per rank\n"
                         "Errors are |predicted / measured - 1|: on the rows themselves, and on each row "
                         "left out of the fit.\n",
                         profile.host.cores, format_bytes(profile.host.memory), profile.created, profile.threads,
                         profile.threads == 1 ? "" : "s");
  for (std::size_t i = 0; i < fit.reports.size(); ++i) text += variant_text(profile.variants[i], fit.reports[i], paint);
  return text + fmt::format("\nwritten to {}\n", path);
}

Json error_json(const CurveReport& report, std::size_t index) {
  if (report.errors.size() <= index) return nullptr;
  const FitError& error = report.errors[index];
  return {{"rows", error.rows}, {"median_abs_error", error.median}, {"p90_abs_error", error.p90},
      {"log_bias", error.log_bias}};
}

Json answer_json(const LocalFit& fit, const std::string& path) {
  Json body = {{"profile", path}, {"id", fit.profile.id}, {"variants", Json::array()}};
  for (std::size_t i = 0; i < fit.reports.size(); ++i) {
    const LocalVariant& variant = fit.profile.variants[i];
    Json curves = json_list(fit.reports[i].curves, [&](const CurveReport& curve) -> Json {
      return {{"curve", curve.curve}, {"points", curve.rows}, {"constants", curve.constants},
          {"evidence", to_string(curve.evidence)}, {"own", error_json(curve, 0)}, {"left_out", error_json(curve, 1)}};
    });
    body["variants"].push_back({{"ranks", variant.ranks}, {"peak_fp32_flop_per_s", variant.peak_fp32.value()},
        {"peak_bf16_flop_per_s", variant.peak_bf16.value()},
        {"memory_bandwidth_bytes_per_s", variant.memory_bandwidth.value()}, {"curves", std::move(curves)},
        {"not_measured", fit.reports[i].gaps}});
  }
  return body;
}

// `out`, or a file in the user's data folder.
std::string place_of(const std::string& out, const std::string& name) {
  if (!out.empty()) return out;
  const std::filesystem::path folder = profile_folder();
  std::error_code error;
  std::filesystem::create_directories(folder, error);  // write_file says where it fails
  return (folder / (name + ".json")).string();
}

// --- measured products of a GPU ---

bool is_csv(const std::string& file) { return std::filesystem::path(file).extension() == ".csv"; }

Json csv_json(const CsvFit& fit, const std::string& path) {
  Json errors = json_list(fit.report.errors, [&](const FitError& error) -> Json {
    return {{"what", error.what}, {"rows", error.rows}, {"median_abs_error", error.median},
        {"p90_abs_error", error.p90}, {"log_bias", error.log_bias}};
  });
  return {{"profile", path}, {"id", fit.calibration.id}, {"gpu", fit.calibration.gpu},
      {"curves", {{{"curve", fit.report.curve}, {"constants", fit.report.constants}, {"errors", std::move(errors)}}}},
      {"notes", fit.notes}};
}

std::string csv_text(const CsvFit& fit, const std::string& path, const Paint& paint) {
  std::string text = paint.bold(fit.calibration.gpu) + fmt::format(": {}\n", fit.report.constants);
  for (const FitError& error : fit.report.errors) {
    text += fmt::format("  {}: median {}, 90 % {} of {} rows\n", error.what, percent_text(error.median),
        percent_text(error.p90), error.rows);
  }
  for (const std::string& line : fit.notes) text += "  " + paint.yellow(line) + "\n";
  return text + fmt::format("\nwritten to {}; use it with --profile {}\n", path, path);
}

ExitCode calibrate_products(const CalibrateOptions& options) {
  std::vector<CsvTable> tables;
  for (const std::string& file : options.files) {
    tables.push_back(read_table(file));
    if (!is_gemm_table(tables.back())) {
      throw ConfigError(
          {file, 1, 0, ""}, "no table of products", "columns gpu, m, n, k, dtype and tflops or latency_us");
    }
  }
  const std::string id = std::filesystem::path(options.files.front()).stem().string();
  const CsvFit fit = fit_gemm_csv(tables, id);
  const std::string path = place_of(options.out, fmt::format("{}-{}", fit.calibration.gpu, id));
  write_file(path, to_text(to_json(fit.calibration)));
  if (options.output.form == Form::kJson) {
    Json body = csv_json(fit, path);
    body["next"] = next_json(next_measurements(path, fit.calibration.gpu));
    write_answer(document("foreshard.calibrate/1", body));
  } else {
    write_text(csv_text(fit, path, Paint(color_of(options.output.color))) + "\n" +
               next_text(next_measurements(path, fit.calibration.gpu)));
  }
  return ExitCode::kOk;
}

ExitCode calibrate_device(const CalibrateOptions& options, const DeviceFit& fit) {
  const Calibration& c = fit.calibration;
  const std::string path = place_of(options.out, c.id);
  write_file(path, to_text(to_json(c)));
  if (options.output.form == Form::kJson) {
    write_answer(document("foreshard.calibrate/1",
        {{"profile", path}, {"id", c.id}, {"gpu", c.gpu},
            {"measured", {{"gemm", c.measured.gemm.size()}, {"attention", c.measured.attention.size()},
                             {"functions", c.measured.functions.size()}}},
            {"notes", fit.notes}}));
    return ExitCode::kOk;
  }
  const Paint paint(color_of(options.output.color));
  std::string text =
      paint.bold(c.gpu) + fmt::format(": {} products, {} attention shapes, {} memory-bound functions measured\n",
                              c.measured.gemm.size(), c.measured.attention.size(), c.measured.functions.size());
  for (const std::string& line : fit.notes) text += "  " + paint.yellow(line) + "\n";
  write_text(text + fmt::format("\nwritten to {}; use it with --profile {}\n", path, path));
  return ExitCode::kOk;
}

}

ExitCode run_calibrate(const CalibrateOptions& options) {
  if (std::ranges::all_of(options.files, is_csv)) return calibrate_products(options);
  if (are_nccl_tests(options.files)) return calibrate_sweeps(options);
  auto parts = list_of<Measurements>(options.files, [&](const std::string& file) { return read_measurements(file); });
  const Measurements measured = joined(parts);
  if (measured.device) return calibrate_device(options, fit_device(measured));
  const LocalFit fit = fit_local(measured);
  const std::string path = place_of(options.out, fit.profile.id);
  write_file(path, to_text(to_json(fit.profile)));
  if (options.output.form == Form::kJson) write_answer(document("foreshard.calibrate/1", answer_json(fit, path)));
  else write_text(answer_text(fit, path, Paint(color_of(options.output.color))));
  return ExitCode::kOk;
}

}
