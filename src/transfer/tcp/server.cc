#include "transfer/tcp/server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "base/hostport.h"

namespace mooncake::transfer {

namespace {

// Peers, friend or foe, leave the other half to the program that the server is a part of.
uint32_t HalfOfTheDescriptors() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return UINT32_MAX;
  return static_cast<uint32_t>(std::clamp<rlim_t>(limit.rlim_cur / 2, 1, UINT32_MAX));
}

}  // namespace

Result<std::string> TcpServer::Start(const std::string& host, uint16_t port,
                                     std::function<void(uint64_t)> janitor) {
  MC_TRY(UniqueFd listener, ListenOn(host, port, context_.options.buffer_bytes));
  context_.connections_max = std::min(context_.options.connections_max, HalfOfTheDescriptors());
  for (uint32_t i = 0; i < std::max(1u, context_.options.loops); ++i) {
    loops_.push_back(std::make_unique<EventLoop>(context_, workers_));
    MC_RETURN_IF_ERROR(loops_.back()->Open());
  }
  loops_[0]->SetJanitor(std::move(janitor));
  MC_RETURN_IF_ERROR(loops_[0]->Accept(
      std::move(listener), [this](UniqueFd fd) { Spread(std::move(fd)); },
      [this] {
        for (auto& loop : loops_) loop->AskForRoom();
      }));
  MC_RETURN_IF_ERROR(workers_.Start(context_.runtime, std::max(1u, context_.options.workers)));
  for (size_t i = 0; i < loops_.size(); ++i) {
    EventLoop* const loop = loops_[i].get();
    threads_.push_back(
        context_.runtime.Spawn(fmt::format("mc-tcp-loop-{}", i), [loop] { loop->Run(); }));
  }
  return base::JoinHostPort(host, port);
}

void TcpServer::Spread(UniqueFd fd) {
  loops_[next_loop_]->Adopt(std::move(fd));
  next_loop_ = (next_loop_ + 1) % loops_.size();
}

void TcpServer::Close() {
  for (auto& loop : loops_) loop->Stop();
  for (auto& thread : threads_) thread->Join();
  threads_.clear();
  workers_.Stop();
  loops_.clear();  // With the connections and their calls, which no thread holds any more.
}

}  // namespace mooncake::transfer
