// One table. A newer version of this program may add columns: reading names those it knows.
#include "reports/validate/history.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <memory>
#include <system_error>

#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr int kBusyMilliseconds = 5000;

constexpr const char* kCreate =
    "CREATE TABLE IF NOT EXISTS validations (id INTEGER PRIMARY KEY, created TEXT NOT NULL, host TEXT NOT NULL, "
    "fingerprint TEXT NOT NULL, plan_yaml TEXT NOT NULL, model TEXT NOT NULL, runtime TEXT NOT NULL, ranks INTEGER NOT "
    "NULL, predicted_s REAL NOT NULL, low_s REAL NOT NULL, high_s REAL NOT NULL, measured_s REAL NOT NULL, "
    "exposed_communication_error REAL NOT NULL, memory_error REAL NOT NULL, passed INTEGER NOT NULL, profile TEXT NOT "
    "NULL, version TEXT NOT NULL)";

constexpr const char* kColumns =
    "created, host, fingerprint, plan_yaml, model, runtime, ranks, predicted_s, low_s, high_s, measured_s, "
    "exposed_communication_error, memory_error, passed, profile, version";

class Database {
 public:
  Database(const std::filesystem::path& file, int flags) : file_(file) {
    sqlite3* handle = nullptr;
    const int result = sqlite3_open_v2(file.c_str(), &handle, flags, nullptr);
    handle_.reset(handle);
    if (result != SQLITE_OK) fail();
    sqlite3_busy_timeout(handle, kBusyMilliseconds);
  }
  sqlite3* get() const { return handle_.get(); }
  void run(const char* statement) const {
    if (sqlite3_exec(get(), statement, nullptr, nullptr, nullptr) != SQLITE_OK) fail();
  }
  [[noreturn]] void fail() const {
    const char* reason = handle_ == nullptr ? "out of memory" : sqlite3_errmsg(get());
    throw invalid_input("{}: {}", file_.string(), reason);
  }

 private:
  struct Close {
    void operator()(sqlite3* handle) const { sqlite3_close(handle); }
  };
  std::filesystem::path file_;
  std::unique_ptr<sqlite3, Close> handle_;
};

class Statement {
 public:
  Statement(const Database& database, const std::string& text) : database_(database) {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(database.get(), text.c_str(), -1, &statement, nullptr) != SQLITE_OK) database.fail();
    statement_.reset(statement);
  }
  // Parameters are bound and columns read from left to right.
  void bind(const std::string& text) {
    check(sqlite3_bind_text(statement_.get(), ++bound_, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT));
  }
  void bind(double value) { check(sqlite3_bind_double(statement_.get(), ++bound_, value)); }
  void bind(std::int64_t value) { check(sqlite3_bind_int64(statement_.get(), ++bound_, value)); }
  bool step() {
    read_ = 0;
    const int result = sqlite3_step(statement_.get());
    if (result != SQLITE_ROW && result != SQLITE_DONE) database_.fail();
    return result == SQLITE_ROW;
  }
  std::int64_t whole() { return sqlite3_column_int64(statement_.get(), read_++); }
  double real() { return sqlite3_column_double(statement_.get(), read_++); }
  std::string text() {
    const unsigned char* text = sqlite3_column_text(statement_.get(), read_++);
    return text == nullptr ? "" : reinterpret_cast<const char*>(text);
  }

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  void check(int result) const {
    if (result != SQLITE_OK) database_.fail();
  }
  const Database& database_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int bound_ = 0;
  int read_ = 0;
};

}

void append_history(const std::filesystem::path& file, const HistoryRow& row) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error) throw invalid_input("{}: cannot be made: {}", file.parent_path().string(), error.message());
  const Database database(file, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  database.run(kCreate);
  Statement insert(
      database, fmt::format("INSERT INTO validations ({}) VALUES (coalesce(nullif(?, ''), "
                            "strftime('%Y-%m-%dT%H:%M:%SZ', 'now')), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    kColumns));
  for (const std::string* text : {&row.created, &row.host, &row.fingerprint, &row.plan_yaml, &row.model, &row.runtime})
    insert.bind(*text);
  insert.bind(static_cast<std::int64_t>(row.ranks));
  for (double value :
      {row.predicted_s, row.low_s, row.high_s, row.measured_s, row.exposed_communication_error, row.memory_error})
    insert.bind(value);
  insert.bind(static_cast<std::int64_t>(row.passed));
  insert.bind(row.profile);
  insert.bind(row.version);
  insert.step();
}

std::vector<HistoryRow> read_history(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {};
  const Database database(file, SQLITE_OPEN_READONLY);
  Statement select(database, fmt::format("SELECT id, {} FROM validations ORDER BY id", kColumns));
  std::vector<HistoryRow> rows;
  while (select.step()) {
    HistoryRow row = {.id = select.whole()};
    for (std::string* text : {&row.created, &row.host, &row.fingerprint, &row.plan_yaml, &row.model, &row.runtime})
      *text = select.text();
    row.ranks = static_cast<int>(select.whole());
    for (double* value : {&row.predicted_s, &row.low_s, &row.high_s, &row.measured_s, &row.exposed_communication_error,
             &row.memory_error})
      *value = select.real();
    row.passed = select.whole() != 0;
    row.profile = select.text();
    row.version = select.text();
    rows.push_back(std::move(row));
  }
  return rows;
}

}
