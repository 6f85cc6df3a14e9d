// How the YAML and JSON readers build the tree of sim/base/config.h. Included by its parts only.
//
// A reader reports what it meets, in file order; the builder keeps the open containers, checks keys
// and limits, and throws ConfigError.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/base/config.h"

namespace foreshard {

// Line and column from 1; 0 is unknown.
struct ConfigMark {
  int line = 0;
  int column = 0;
};

enum class ConfigFormat { kYaml, kJson };
enum class Quoting { kPlain, kQuoted };

// One step of a key path, linked to the step above it: a path string per node would let a long key
// with many values below it take memory quadratic in the size of the file.
struct ConfigPath {
  std::shared_ptr<const ConfigPath> above;  // null: the root
  std::string key;
  std::size_t index = 0;
  bool is_index = false;
};

struct ConfigData {
  ConfigNode::Kind kind = ConfigNode::Kind::kNull;
  ConfigFormat format = ConfigFormat::kYaml;
  Quoting quoting = Quoting::kPlain;
  ConfigMark mark;
  ConfigMark key_mark;
  std::string text;
  std::shared_ptr<const std::string> file;
  std::shared_ptr<const ConfigPath> path;
  std::vector<ConfigItem> items;
  std::vector<ConfigNode> elements;
};

class ConfigTreeBuilder {
 public:
  ConfigTreeBuilder(std::string_view file_name, ConfigFormat format);

  void begin_mapping(ConfigMark mark) { begin(mark, ConfigNode::Kind::kMapping); }
  void begin_sequence(ConfigMark mark) { begin(mark, ConfigNode::Kind::kSequence); }
  void end();  // of the innermost open container
  // In a mapping, scalars are keys and values in turn.
  void scalar(ConfigMark mark, std::string text, Quoting quoting);
  void null(ConfigMark mark);

  // The given place, with the key path of what is being read.
  Location location(ConfigMark mark) const;
  // Where the innermost open container began.
  ConfigMark innermost() const;
  // The finished tree; throws at the end of the file where nothing was read.
  ConfigNode finish();

 private:
  struct Open {
    std::shared_ptr<ConfigData> data;
    std::unordered_map<std::string, int> lines_of_keys;
    std::string key;  // of the value that comes next, where has_key
    ConfigMark key_mark;
    bool has_key = false;
  };

  bool is_key_due() const;
  std::shared_ptr<const ConfigPath> next_path() const;
  std::shared_ptr<ConfigData> make(ConfigMark mark, ConfigNode::Kind kind);
  void begin(ConfigMark mark, ConfigNode::Kind kind);
  void take_key(ConfigMark mark, std::string text);
  void attach(std::shared_ptr<ConfigData> data);

  std::shared_ptr<const std::string> file_;
  ConfigFormat format_;
  std::vector<Open> open_;
  std::shared_ptr<const ConfigData> root_;
  std::size_t nodes_ = 0;
  std::size_t text_bytes_ = 0;
};

// "mesh.shard", "units[2].value"; "" for the root. Long keys are cut.
std::string to_string(const ConfigPath* path);

// The text without a byte order mark. Throws where it is empty, longer than `max_bytes`, not UTF-8,
// or has a control character other than tab and line ends.
std::string_view checked_text(std::string_view text, std::string_view file_name, std::size_t max_bytes);

inline constexpr std::size_t kMaxJsonBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxYamlBytes = std::size_t{2} << 20;

}
