// A TCPStore behind a PrefixStore. Every exception of c10d becomes an Error that names the store's address. LibTorch's
// own log lines on standard error are switched off: what a user must know is in the Errors.
#include "exec/comm/job_store.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "exec/comm/c10d_store.h"
#include "sim/base/error.h"

C10_DECLARE_int(caffe2_log_level);

namespace foreshard {
namespace {

constexpr const char* kOwnerKey = "foreshard owner";
constexpr int kOnlyErrors = 2;
constexpr auto kServerSide = std::chrono::seconds(60);  // the server's own client answers at once

auto named(const StoreAddress& address, auto call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw Error(
        ExitCode::kLaunchFailure, "the store at {}:{} failed: {}", address.host, address.port, first_line(error));
  }
}

std::shared_ptr<JobStore::Connection> open(
    const StoreAddress& address, const std::string& run_id, const c10d::TCPStoreOptions& options) {
  FLAGS_caffe2_log_level = kOnlyErrors;
  return named(address, [&] {
    auto whole = c10::make_intrusive<c10d::TCPStore>(address.host, options);
    auto own = c10::make_intrusive<c10d::PrefixStore>("foreshard/" + run_id, whole);
    return std::make_shared<JobStore::Connection>(JobStore::Connection{std::move(own), std::move(whole)});
  });
}

c10d::TCPStoreOptions options_of(const StoreAddress& address, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(address.port);
  options.waitWorkers = false;
  options.timeout = timeout;
  options.useLibUV = false;
  return options;
}

}

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

JobStore::JobStore(StoreAddress address, std::string run_id, std::shared_ptr<Connection> connection)
    : address_(std::move(address)), run_id_(std::move(run_id)), connection_(std::move(connection)) {}

std::shared_ptr<JobStore> JobStore::serve(
    int listening_socket, const StoreAddress& address, const std::string& run_id) {
  c10d::TCPStoreOptions options = options_of(address, kServerSide);
  options.isServer = true;
  options.masterListenFd = listening_socket;
  std::shared_ptr<JobStore> store(new JobStore(address, run_id, open(address, run_id, options)));
  named(address, [&] { store->connection_->whole->set(kOwnerKey, run_id); });
  return store;
}

std::string JobStore::owner() {
  return named(
      address_,
      [&] { return connection_->whole->check({kOwnerKey}) ? connection_->whole->get_to_str(kOwnerKey) : ""; });
}

std::shared_ptr<JobStore> JobStore::join(
    const StoreAddress& address, const std::string& run_id, std::chrono::milliseconds timeout) {
  return std::shared_ptr<JobStore>(new JobStore(address, run_id, open(address, run_id, options_of(address, timeout))));
}

void JobStore::set(const std::string& key, const std::string& text) {
  named(
      address_, [&] { connection_->store->set(key, text); });
}

void JobStore::set_once(const std::string& key, const std::string& text) {
  named(
      address_, [&] { connection_->store->compareSet(key, std::string(), text); });
}

std::int64_t JobStore::add(const std::string& key, std::int64_t amount) {
  return named(
      address_, [&] { return connection_->store->add(key, amount); });
}

bool JobStore::has(const std::string& key) {
  return named(
      address_, [&] { return connection_->store->check({key}); });
}

std::string JobStore::get(const std::string& key) {
  return named(
      address_, [&] { return connection_->store->get_to_str(key); });
}

std::vector<std::string> JobStore::get(const std::vector<std::string>& keys) {
  return named(
      address_,
      [&] {
        std::vector<std::string> texts;
        for (const auto& bytes : connection_->store->multiGet(keys)) texts.emplace_back(bytes.begin(), bytes.end());
        return texts;
      });
}

bool JobStore::wait(const std::string& key, std::chrono::milliseconds timeout) {
  try {
    connection_->store->wait({key}, timeout);
    return true;
  } catch (const std::exception&) {
    if (named(address_, [&] { return connection_->store->check({key}); })) return true;
    return false;
  }
}

}
