// nlohmann's SAX parser calls the handler below for every token. It knows where it is by the depth and the key: depth 1
// are the keys of the file, "traceEvents" holds events at depth 3 (depth 2 where the file is a bare list), and an
// event's "args" lie one below. Lists among the args (shapes) are kept as their text, each different one once. Times
// are read from the text of the number, not from its double: 1.7e15 microseconds leave a double no nanoseconds.
#include "interop/traces/kineto.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <istream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <streambuf>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/json_document.h"
#include "sim/base/parse.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

// What is kept of an event is about as much as its text.
constexpr std::size_t kMaxTraceBytes = std::size_t{4} << 30;

// zlib reads a file that is not compressed as it is.
class ZlibBuffer : public std::streambuf {
 public:
  explicit ZlibBuffer(const std::filesystem::path& path) : file_(gzopen(path.c_str(), "rb")) {
    if (file_ != nullptr) gzbuffer(file_, 1U << 18);
  }
  ~ZlibBuffer() override {
    if (file_ != nullptr) gzclose(file_);
  }
  ZlibBuffer& operator=(ZlibBuffer&&) = delete;  // nor is it copied
  bool is_open() const { return file_ != nullptr; }
  const std::string& failure() const { return failure_; }

 protected:
  int_type underflow() override {
    const int count = gzread(file_, block_.data(), static_cast<unsigned>(block_.size()));
    int code = Z_OK;
    const char* words = gzerror(file_, &code);
    // A gzip stream without its end is reported only once its bytes have run out.
    if (count < 0 || (count == 0 && code != Z_OK && code != Z_STREAM_END))
      failure_ = fmt::format("the compressed file is damaged: {}", words);
    if (count <= 0) return traits_type::eof();
    read_ += at(count);
    if (read_ > kMaxTraceBytes) {
      failure_ = fmt::format("is larger than {} GiB unpacked", kMaxTraceBytes >> 30);
      return traits_type::eof();
    }
    setg(block_.data(), block_.data(), block_.data() + count);
    return traits_type::to_int_type(block_[0]);
  }

 private:
  gzFile file_;
  std::size_t read_ = 0;
  std::array<char, std::size_t{1} << 16> block_{};
  std::string failure_;
};

constexpr std::int64_t kNone = -1;

// 127 years: a time and a duration behind it still add up in nanoseconds.
constexpr std::int64_t kMostMicroseconds = 4'000'000'000'000'000;

template <typename Number>
bool is_time(Number microseconds) {
  constexpr auto kMost = static_cast<Number>(kMostMicroseconds);
  return microseconds >= -kMost && microseconds <= kMost;
}

// Microseconds as decimal text, to nanoseconds; further decimals are cut.
std::optional<std::int64_t> nanoseconds_of(std::string_view text) {
  const std::size_t point = text.find('.');
  const auto whole = parse_number<std::int64_t>(text.substr(0, point));
  if (!whole || !is_time(*whole)) return std::nullopt;
  std::int64_t fraction = 0;
  if (point != std::string_view::npos) {
    std::int64_t unit = 100;
    for (std::size_t i = point + 1; i < text.size() && unit > 0; ++i, unit /= 10) {
      if (text[i] < '0' || text[i] > '9') return std::nullopt;
      fraction += (text[i] - '0') * unit;
    }
  }
  return *whole * 1000 + (text.starts_with('-') ? -fraction : fraction);
}

class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Handler(KinetoTrace& trace) : trace_(trace) {}

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t value) override {
    number(value, as_double(value), "");
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    // Addresses do not fit, and are not asked for.
    const auto most = static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max());
    number(value > most ? kNone : static_cast<std::int64_t>(value), as_double(value), "");
    return true;
  }
  bool number_float(number_float_t value, const string_t& text) override {
    const bool whole = std::abs(value) < 9e15 && value == std::floor(value);
    number(whole ? static_cast<std::int64_t>(value) : kNone, value, text);
    return true;
  }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override { return open('{'); }
  bool start_array(std::size_t /*size*/) override { return open('['); }
  bool end_object() override {
    if (in_event() && path_.size() == event_depth_) take_event();
    path_.pop_back();
    return true;
  }
  bool end_array() override {
    if (std::string* list = open_list(); list != nullptr) list->push_back(']');
    path_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    if (path_.size() == 1) section_ = name;
    if (in_event() && path_.size() == event_depth_) inside_args_ = name == "args";
    key_ = name;
    return true;
  }
  bool parse_error(
      std::size_t /*position*/, const std::string& /*token*/, const nlohmann::json::exception& error) override {
    failure = json_failure(error.what());
    return false;
  }
  bool string(string_t& text) override {
    if (in_event()) {
      event_text(text);
    } else if (section_ == "distributedInfo" && path_.size() == 4 && !trace_.groups.empty()) {
      if (key_ == "pg_name") trace_.groups.back().name = text;
      if (key_ == "pg_desc") trace_.groups.back().description = text;
    } else if (section_ == "distributedInfo" && key_ == "backend" && trace_.backend.empty()) {
      trace_.backend = text;
    } else if (section_ == "deviceProperties" && key_ == "name" && trace_.device.empty()) {
      trace_.device = text;
    }
    return true;
  }

  JsonFailure failure;
  bool has_events = false;  // the list was there

 private:
  struct Draft {
    TraceEvent event;
    bool complete = false;  // ph X
    bool of_gpu = false;    // of a memory event
    std::string category, name, collective, shapes, types;
    TracedMessage message;
    std::optional<std::int64_t> begin, duration;
    std::int64_t thread = kNone, stream = kNone;
  };

  bool open(char kind) {
    path_.push_back(kind);
    if (std::string* list = open_list(); list != nullptr) {
      separate(*list);
      list->push_back('[');
    }
    if (kind == '{' && section_ == "distributedInfo" && path_.size() == 4) trace_.groups.emplace_back();
    if (path_.size() == 1) event_depth_ = kind == '[' ? 2 : 3;
    has_events = has_events ||
                 (kind == '[' && path_.size() + 1 == event_depth_ && (path_.size() == 1 || section_ == "traceEvents"));
    if (in_event() && path_.size() == event_depth_) {
      draft_ = Draft();
      inside_args_ = false;
    }
    return true;
  }
  bool in_event() const {
    return path_.size() >= event_depth_ && path_[event_depth_ - 1] == '{' &&
           (event_depth_ == 2 || section_ == "traceEvents");
  }

  // The list among the event's args that is open and kept.
  std::string* open_list() {
    if (!in_event() || !inside_args_ || path_.size() < event_depth_ + 2) return nullptr;
    if (path_[event_depth_ + 1] != '[') return nullptr;
    return key_ == "Input Dims" ? &draft_.shapes : key_ == "Input type" ? &draft_.types : nullptr;
  }
  static void separate(std::string& list) {
    if (!list.empty() && list.back() != '[') list.push_back(',');
  }

  void number(std::int64_t whole, double value, std::string_view text) {
    if (std::string* list = open_list(); list != nullptr) {
      separate(*list);
      *list += std::to_string(whole);
    } else if (!in_event()) {
      top_number(whole);
    } else if (path_.size() == event_depth_) {
      // Kineto may write an exponent for a round number.
      const auto rounded = is_time(value) ? std::optional<std::int64_t>(std::llround(value * 1000)) : std::nullopt;
      const auto time = !text.empty()    ? nanoseconds_of(text)
                        : is_time(whole) ? std::optional(whole * 1000)
                                         : std::nullopt;
      if (key_ == "ts") draft_.begin = time ? time : rounded;
      if (key_ == "dur") draft_.duration = time ? time : rounded;
      if (key_ == "tid") draft_.thread = whole;
    } else if (inside_args_ && path_.size() == event_depth_ + 1) {
      argument(whole);
    }
  }
  void top_number(std::int64_t whole) {
    if (path_.size() == 1 && key_ == "baseTimeNanoseconds") trace_.base_nanoseconds = whole;
    if (path_.size() == 1 && key_ == "record_shapes") trace_.has_shapes = whole != 0;
    if (section_ == "deviceProperties" && key_ == "totalGlobalMem" && trace_.device_bytes == 0)
      trace_.device_bytes = whole;
    if (section_ != "distributedInfo") return;
    if (path_.size() >= 4 && !trace_.groups.empty()) {
      if (key_ == "pg_size") trace_.groups.back().size = whole;
      if (key_ == "ranks") trace_.groups.back().ranks.push_back(whole);
    }
    if (path_.size() != 2) return;
    if (key_ == "rank") trace_.rank = whole;
    if (key_ == "world_size") trace_.world = whole;
  }
  void argument(std::int64_t whole) {
    TraceEvent& event = draft_.event;
    if (key_ == "correlation") event.correlation = whole;
    else if (key_ == "External id") event.external = whole;
    else if (key_ == "Sequence number") event.sequence = whole;
    else if (key_ == "Fwd thread id") event.forward_thread = whole;
    else if (key_ == "stream") draft_.stream = whole;
    else if (key_ == "In msg nelems") draft_.message.in_elements = whole;
    else if (key_ == "Out msg nelems") draft_.message.out_elements = whole;
    else if (key_ == "Group size") draft_.message.group_size = whole;
    else if (key_ == "Total Allocated") event.allocated = Bytes(whole);
    else if (key_ == "Total Reserved") event.reserved = Bytes(whole);
    else if (key_ == "Device Type") draft_.of_gpu = whole != 0;  // c10::DeviceType: 0 is the CPU
  }
  void event_text(const std::string& text) {
    if (path_.size() == event_depth_) {
      if (key_ == "ph") draft_.complete = text == "X";
      if (key_ == "cat") draft_.category = text;
      if (key_ == "name") draft_.name = text;
    } else if (inside_args_ && path_.size() == event_depth_ + 1) {
      if (key_ == "Collective name") draft_.collective = text;
      if (key_ == "dtype") draft_.message.dtype = text;
      if (key_ == "Process Group Name") draft_.message.group = text;
      if (key_ == "Process Group Ranks") draft_.message.stride = stride_of(text);
    } else if (std::string* list = open_list(); list != nullptr) {
      separate(*list);
      *list += fmt::format("\"{}\"", text);
    }
  }

  // Of "[0, 8, 16]", of which a long one is cut: "[0, 8, 16, ..., 120]".
  static std::int64_t stride_of(std::string_view text) {
    std::vector<std::int64_t> ranks;
    for (const char *at = text.data(), *end = at + text.size(); at < end; ++at) {
      if (*at == '.') break;
      std::int64_t rank = 0;
      const auto [behind, error] = std::from_chars(at, end, rank);
      if (error != std::errc()) continue;
      ranks.push_back(rank);
      at = behind;
    }
    if (ranks.size() < 2) return 0;
    const std::int64_t stride = ranks[1] - ranks[0];
    for (std::size_t i = 1; i < ranks.size(); ++i)
      if (ranks[i] - ranks[i - 1] != stride) return 0;
    return stride;
  }

  static std::optional<TraceEvent::Category> category_of(const std::string& text) {
    using Category = TraceEvent::Category;
    if (text == "cpu_op") return Category::kOperator;
    if (text == "user_annotation") return Category::kAnnotation;
    if (text == "cuda_runtime" || text == "cuda_driver") return Category::kLaunch;
    if (text == "kernel" || text == "gpu_memcpy" || text == "gpu_memset") return Category::kDevice;
    return std::nullopt;
  }

  void take_event() {
    if (!draft_.begin) return;
    TraceEvent& event = draft_.event;
    event.begin = Time::ns(*draft_.begin);
    event.end = event.begin;
    if (draft_.name == "[memory]" && draft_.of_gpu) {
      event.category = TraceEvent::Category::kMemory;
    } else {
      const auto category = category_of(draft_.category);
      if (!category || !draft_.complete) return;
      event.category = *category;
      event.end = event.begin + Time::ns(std::max<std::int64_t>(draft_.duration.value_or(0), 0));
    }
    event.name = number_of(draft_.name);
    event.collective = number_of(draft_.collective);
    event.shapes = number_of(draft_.shapes);
    event.types = number_of(draft_.types);
    if (!draft_.collective.empty()) event.message = message_of(draft_.message);
    const bool on_device = event.category == TraceEvent::Category::kDevice;
    event.thread = on_device && draft_.stream != kNone ? draft_.stream : draft_.thread;
    trace_.events.push_back(event);
  }
  std::uint32_t number_of(const std::string& name) {
    if (name.empty()) return 0;
    const auto [entry, is_new] = numbers_.emplace(name, static_cast<std::uint32_t>(trace_.names.size()));
    if (is_new) trace_.names.push_back(name);
    return entry->second;
  }

  std::uint32_t message_of(const TracedMessage& message) {
    const auto [entry, is_new] = message_numbers_.emplace(std::tuple(message.dtype, message.group, message.in_elements,
                                                              message.out_elements, message.group_size, message.stride),
        static_cast<std::uint32_t>(trace_.messages.size()));
    if (is_new) trace_.messages.push_back(message);
    return entry->second;
  }

  KinetoTrace& trace_;
  std::string path_;  // the brackets that are open
  std::string section_, key_;
  std::size_t event_depth_ = 3;
  bool inside_args_ = false;
  Draft draft_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::map<std::tuple<std::string, std::string, std::int64_t, std::int64_t, std::int64_t, std::int64_t>, std::uint32_t>
      message_numbers_;
};

}

std::int64_t TracedMessage::bytes() const {
  static constexpr std::pair<std::string_view, std::int64_t> kSizes[] = {
      {"BFloat16", 2}, {"Half", 2}, {"Byte", 1}, {"Double", 8}};
  const std::int64_t elements = std::max(in_elements, out_elements);
  for (const auto& [name, size] : kSizes)
    if (dtype == name) return elements * size;
  return elements * 4;
}

bool KinetoTrace::of_gpu() const {
  return std::ranges::any_of(
      events, [](const TraceEvent& event) { return event.category == TraceEvent::Category::kDevice; });
}

KinetoTrace read_kineto(const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& what) { throw ConfigError({path.string(), 0, 0, ""}, what); };
  expect_regular_file(path);
  ZlibBuffer buffer(path);
  if (!buffer.is_open()) refuse("cannot be read");
  KinetoTrace trace = {.file = path.string()};
  Handler handler(trace);
  std::istream stream(&buffer);
  const bool whole = nlohmann::json::sax_parse(stream, &handler);
  if (!buffer.failure().empty()) refuse(buffer.failure());
  if (!whole) {
    throw ConfigError({path.string(), handler.failure.line, handler.failure.column, ""},
        "is not whole JSON: " + handler.failure.reason);
  }
  if (!handler.has_events) refuse("has no traceEvents; torch.profiler's export_chrome_trace writes them");
  if (trace.events.empty()) refuse("has no events of torch.profiler (cpu_op, user_annotation, kernel)");
  return trace;
}

// `Input Dims` has a list of sizes for every argument, empty for what is no tensor, and a list of
// lists for a list of tensors; `Input type` has a C++ type, "TensorList" or "Scalar" for each.

namespace {

using ShapeJson = nlohmann::json;

// caffe2::TypeMeta's names against c10::ScalarType's.
std::string scalar_type(const std::string& type) {
  static constexpr std::pair<std::string_view, const char*> kNames[] = {{"float", "Float"}, {"double", "Double"},
      {"c10::BFloat16", "BFloat16"}, {"c10::Half", "Half"}, {"unsigned char", "Byte"}, {"long int", "Long"}};
  for (const auto& [name, scalar] : kNames)
    if (type == name) return scalar;
  return type;
}

bool is_shape(const ShapeJson& dims) {
  return std::ranges::none_of(
      dims, [&](const ShapeJson& dim) { return !dim.is_number_integer(); });
}

}

std::int64_t TracedTensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::vector<TracedTensor> tensors_of(const KinetoTrace& trace, const TraceEvent& event) {
  std::vector<TracedTensor> tensors;
  const ShapeJson dims = ShapeJson::parse(trace.names[event.shapes], nullptr, false);
  const ShapeJson types = ShapeJson::parse(trace.names[event.types], nullptr, false);
  if (!dims.is_array()) return tensors;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const bool typed = types.is_array() && i < types.size() && types[i].is_string();
    const std::string type = typed ? types[i].get<std::string>() : "";
    if (!dims[i].is_array() || dims[i].empty()) continue;
    if (is_shape(dims[i])) {
      tensors.push_back({scalar_type(type), dims[i].get<TensorShape>()});
      continue;
    }
    for (const ShapeJson& one : dims[i])
      if (one.is_array() && is_shape(one)) tensors.push_back({"", one.get<TensorShape>()});
  }
  return tensors;
}

}
