// Steps solve (J'WJ + lambda diag) d = J'W r with a numeric Jacobian, are cut at the ranges, and
// are taken when the Huber cost falls. lambda follows success and failure by factors of ten.
#include "calibration/fit/least_squares.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <limits>
#include <utility>

#include "calibration/fit/fit.h"
#include "sim/base/error.h"
#include "sim/base/quantile.h"

namespace foreshard {
namespace {

// The problem in search coordinates: logarithms where the range allows it.
class Search {
 public:
  explicit Search(const LeastSquares& problem) : problem_(problem) {}

  Eigen::VectorXd inward(const std::vector<double>& constants) const {
    Eigen::VectorXd x(static_cast<Eigen::Index>(constants.size()));
    for (std::size_t i = 0; i < constants.size(); ++i)
      x[static_cast<Eigen::Index>(i)] = is_log(i) ? std::log(constants[i]) : constants[i] / scale(i);
    return cut(x);
  }
  std::vector<double> outward(const Eigen::VectorXd& x) const {
    std::vector<double> constants(at(x.size()));
    for (std::size_t i = 0; i < constants.size(); ++i) {
      const double value = x[static_cast<Eigen::Index>(i)];
      constants[i] =
          std::clamp(is_log(i) ? std::exp(value) : value * scale(i), problem_.ranges[i].low, problem_.ranges[i].high);
    }
    return constants;
  }
  Eigen::VectorXd cut(Eigen::VectorXd x) const {
    for (std::size_t i = 0; i < problem_.ranges.size(); ++i) {
      const Range& range = problem_.ranges[i];
      const double low = is_log(i) ? std::log(range.low) : range.low / scale(i);
      const double high = is_log(i) ? std::log(range.high) : range.high / scale(i);
      double& value = x[static_cast<Eigen::Index>(i)];
      value = std::clamp(value, low, high);
    }
    return x;
  }
  Eigen::VectorXd residuals(const Eigen::VectorXd& x) const {
    Eigen::VectorXd r(static_cast<Eigen::Index>(problem_.rows));
    problem_.residuals(outward(x), {r.data(), problem_.rows});
    return r;
  }
  double cost(const Eigen::VectorXd& r) const {
    double sum = 0;
    for (const double value : r) {
      const double size = std::abs(value);
      sum += size <= problem_.huber ? size * size / 2 : problem_.huber * (size - problem_.huber / 2);
    }
    return sum;
  }
  Eigen::VectorXd weights(const Eigen::VectorXd& r) const {
    return r.unaryExpr([this](double value) {
      const double size = std::abs(value);
      return size <= problem_.huber ? 1.0 : problem_.huber / size;
    });
  }
  Eigen::MatrixXd jacobian(const Eigen::VectorXd& x) const {
    Eigen::MatrixXd j(static_cast<Eigen::Index>(problem_.rows), x.size());
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      constexpr double kStep = 1e-6;
      Eigen::VectorXd up = x;
      Eigen::VectorXd down = x;
      up[i] += kStep;
      down[i] -= kStep;
      up = cut(up);
      down = cut(down);
      const double width = up[i] - down[i];
      j.col(i) = (residuals(up) - residuals(down)) / width;
    }
    return j;
  }

 private:
  bool is_log(std::size_t i) const { return problem_.ranges[i].low > 0; }
  double scale(std::size_t i) const { return problem_.ranges[i].high; }

  const LeastSquares& problem_;
};

struct Found {
  Eigen::VectorXd x;
  double cost = std::numeric_limits<double>::infinity();
};

Found descend(const Search& search, Eigen::VectorXd x) {
  constexpr int kMaxSteps = 400;
  Eigen::VectorXd r = search.residuals(x);
  double cost = search.cost(r);
  double lambda = 1e-3;
  for (int step = 0; step < kMaxSteps; ++step) {
    const Eigen::MatrixXd j = search.jacobian(x);
    const Eigen::VectorXd w = search.weights(r);
    // Lazy: Eigen's blocked products add up in an order that follows the processor's cache sizes.
    const Eigen::MatrixXd weighted = w.asDiagonal() * j;
    Eigen::MatrixXd normal = j.transpose().lazyProduct(weighted);
    Eigen::VectorXd gradient = weighted.transpose().lazyProduct(r);
    // A constant at its bound that the gradient pushes outward stays there, or it spoils the others.
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      Eigen::VectorXd probe = x;
      probe[i] -= gradient[i] > 0 ? 1e-6 : -1e-6;
      if (gradient[i] != 0 && search.cut(probe)[i] != x[i]) continue;
      normal.row(i).setZero();
      normal.col(i).setZero();
      normal(i, i) = 1;
      gradient[i] = 0;
    }
    bool moved = false;
    while (lambda < 1e12) {
      Eigen::MatrixXd damped = normal;
      damped.diagonal() += lambda * (normal.diagonal().array() + 1e-12).matrix();
      const Eigen::VectorXd next = search.cut(x - damped.ldlt().solve(gradient));
      const Eigen::VectorXd next_r = search.residuals(next);
      const double next_cost = search.cost(next_r);
      if (next_cost < cost) {
        const double distance = (next - x).norm();
        x = next;
        r = next_r;
        cost = next_cost;
        lambda = std::max(lambda / 10, 1e-12);
        moved = distance > 1e-12;
        break;
      }
      lambda *= 10;
    }
    if (!moved) break;
  }
  return {x, cost};
}

}

std::vector<double> solve(const LeastSquares& problem) {
  FORESHARD_CHECK(problem.rows > 0 && !problem.starts.empty(), "a fit without rows or starts");
  const Search search(problem);
  Found best;
  for (const std::vector<double>& start : problem.starts) {
    FORESHARD_CHECK(start.size() == problem.ranges.size(), "a start with another number of constants");
    const Found found = descend(search, search.inward(start));
    if (found.cost < best.cost * (1 - 1e-9)) best = found;
  }
  return search.outward(best.x);
}

double rounded(double value) { return std::stod(fmt::format("{:.8g}", value)); }

// What a fit is judged by.

FitError fit_error(std::string what, const std::vector<double>& predicted, const std::vector<double>& measured) {
  FORESHARD_CHECK(!measured.empty() && predicted.size() == measured.size(), "an error over no rows: " + what);
  FitError error;
  error.what = std::move(what);
  error.rows = std::ssize(measured);
  std::vector<double> absolute;
  std::vector<double> logs;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    absolute.push_back(std::abs(predicted[i] / measured[i] - 1));
    logs.push_back(std::log(predicted[i] / measured[i]));
  }
  std::ranges::sort(absolute);
  std::ranges::sort(logs);
  error.median = quantile(absolute, 0.5);
  error.p90 = quantile(absolute, 0.9);
  error.log_bias = quantile(logs, 0.5);
  return error;
}

}
