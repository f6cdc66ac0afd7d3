// A TCP proxy that loses answers: for a while, or for the next few, what the server says ends the
// connection instead of reaching the client.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace mooncake::testing {

class LossyProxy {
 public:
  explicit LossyProxy(uint16_t server_port);
  ~LossyProxy();
  LossyProxy(const LossyProxy&) = delete;
  LossyProxy& operator=(const LossyProxy&) = delete;

  uint16_t port() const { return port_; }
  // Lets `keep` answers pass, and loses the one after them.
  void LoseAnswerAfter(int keep) { keep_ = keep; }
  // Ends every connection, also those with a request under way.
  void CutConnections() { ++cuts_; }
  int lost() const { return lost_; }

 private:
  void Accept();
  void Serve(int client);

  const uint16_t server_port_;
  uint16_t port_ = 0;
  int listener_ = -1;
  std::atomic<bool> stop_ = false;
  std::atomic<int> keep_ = -1;  // Below zero: loses none.
  std::atomic<int> lost_ = 0;
  std::atomic<int> cuts_ = 0;
  std::vector<std::thread> serving_;  // The accepting thread's.
  std::thread accepting_;
};

}  // namespace mooncake::testing
