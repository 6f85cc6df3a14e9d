// One job's keys in a c10d TCPStore: where ranks leave texts for each other.
//
// Keys live under "foreshard/<run id>/", so that jobs that share a store by mistake or by design do not mix. Every
// member may be called from any thread; calls of one JobStore go one after the other. Failures are
// Error(kLaunchFailure). A frozen server blocks a call for ever: see bounded_call.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace foreshard {

struct StoreAddress {
  std::string host;
  int port = 0;
};

class JobStore {
 public:
  struct Connection;  // c10d's, in c10d_store.h

  // Serves the store on `listening_socket` (bound and listening, owned by the store from now on) and uses it.
  static std::shared_ptr<JobStore> serve(int listening_socket, const StoreAddress& address, const std::string& run_id);
  // Uses the store served there; `address` answers already.
  static std::shared_ptr<JobStore> join(
      const StoreAddress& address, const std::string& run_id, std::chrono::milliseconds timeout);

  // The run id of whom serve() was called for; empty: served by somebody else, or not yet known.
  std::string owner();

  void set(const std::string& key, const std::string& text);
  // Of all calls for one key the first one sets it.
  void set_once(const std::string& key, const std::string& text);
  std::int64_t add(const std::string& key, std::int64_t amount);  // the sum so far
  bool has(const std::string& key);
  std::string get(const std::string& key);                             // which is there
  std::vector<std::string> get(const std::vector<std::string>& keys);  // which are all there
  // false: not there in time
  bool wait(const std::string& key, std::chrono::milliseconds timeout);

  const StoreAddress& address() const { return address_; }
  const std::string& run_id() const { return run_id_; }
  Connection& connection() { return *connection_; }

 private:
  JobStore(StoreAddress address, std::string run_id, std::shared_ptr<Connection> connection);
  StoreAddress address_;
  std::string run_id_;
  std::shared_ptr<Connection> connection_;
};

}
