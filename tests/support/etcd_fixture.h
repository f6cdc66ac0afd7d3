// An etcd of a test's own: one member on free loopback ports, stopped, paused and emptied as the
// test asks, and killed with the test's process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "metadata/net/tls.h"
#include "runtime/runtime.h"
#include "support/child_process.h"

namespace mooncake::testing {

// PEM files; none: no TLS. The server asks its clients for a certificate of `ca_file`.
struct EtcdTlsFiles {
  std::string ca_file, cert_file, key_file;
};

class EtcdFixture {
 public:
  // Starts the server and waits until it answers. `runtime` is a real one.
  explicit EtcdFixture(Runtime& runtime, EtcdTlsFiles tls = {},
                       std::vector<std::string> more_arguments = {});
  ~EtcdFixture();
  EtcdFixture(const EtcdFixture&) = delete;
  EtcdFixture& operator=(const EtcdFixture&) = delete;

  bool Start();  // With its data, on the same ports as before. False: it did not come up.
  void Stop() { process_.Kill(); }
  void Pause() { process_.Pause(); }
  void Resume() { process_.Resume(); }
  void Wipe();   // Loses the data of a stopped server.
  void Flush();  // Erases every key of a running one.
  // Waits until the leases of up to three seconds are over that keys have now.
  void AwaitLapses();

  // One request to its JSON gateway, "/v3/kv/range" and JSON; the body of the answer, empty when
  // there is none.
  std::string Command(const std::string& path, const std::string& json);
  // The number of keys that begin with `prefix`.
  uint64_t Keys(const std::string& prefix = "");
  // Puts `value` under `key` as it is.
  void Put(const std::string& key, const std::string& value);

  uint16_t port() const { return port_; }
  std::string Url() const { return "etcd://127.0.0.1:" + std::to_string(port_); }

 private:
  Runtime& runtime_;
  const EtcdTlsFiles tls_;
  const std::vector<std::string> more_arguments_;
  const std::filesystem::path folder_;
  uint16_t port_ = 0;
  uint16_t peer_port_ = 0;
  ChildProcess process_;
};

}  // namespace mooncake::testing
