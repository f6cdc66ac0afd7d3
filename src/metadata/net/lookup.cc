#include "metadata/net/lookup.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "obs/per_process.h"

namespace mooncake::metadata {

class Lookup::Question {
 public:
  Question(std::string host, uint16_t port, Runtime& runtime)
      : host_(std::move(host)), port_(std::to_string(port)), done_(runtime.NewEvent()) {}
  ~Question() {
    if (found_ != nullptr) freeaddrinfo(found_);
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  void Ask(int more_flags) {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = AI_NUMERICSERV | more_flags;
    code_ = getaddrinfo(host_.c_str(), port_.c_str(), &wanted, &found_);
  }
  // After Ask by another thread.
  void Finish() {
    ended_.store(true);
    done_->Set();
  }

  bool ended() const { return ended_.load(); }
  Event& done() const { return *done_; }
  int code() const { return code_; }
  const addrinfo* found() const { return found_; }

 private:
  const std::string host_;
  const std::string port_;
  const std::unique_ptr<Event> done_;
  std::atomic<bool> ended_{false};
  int code_ = 0;  // Like found_ the asking thread's until the end.
  addrinfo* found_ = nullptr;
};

namespace {

// Each holds a thread until the resolver's own limits end it, some tens of seconds.
constexpr size_t kGivenUpMax = 16;

// The lookups that nobody waits for any more. Their threads are joined when they have ended.
class GivenUp {
 public:
  void Keep(std::shared_ptr<Lookup::Question> question, std::unique_ptr<Thread> thread) {
    base::MutexLock lock(mu_);
    kept_.push_back({std::move(question), std::move(thread)});
  }

  // How many go on.
  size_t Count() {
    std::vector<Kept> ended;  // Joined when the lock is gone: it is declared first.
    base::MutexLock lock(mu_);
    const auto first = std::partition(kept_.begin(), kept_.end(),
                                      [](const Kept& kept) { return !kept.question->ended(); });
    std::move(first, kept_.end(), std::back_inserter(ended));
    kept_.erase(first, kept_.end());
    return kept_.size();
  }

  void LeaveToParent() {}

 private:
  struct Kept {
    std::shared_ptr<Lookup::Question> question;
    std::unique_ptr<Thread> thread;
  };

  base::Mutex mu_;
  std::vector<Kept> kept_ MC_GUARDED_BY(mu_);
};

GivenUp& GivenUpOfProcess() {
  static constinit obs::PerProcess<GivenUp> given_up;
  return given_up.Get();
}

}  // namespace

Result<std::unique_ptr<Lookup>> Lookup::Start(const std::string& host, uint16_t port,
                                              Runtime& runtime) {
  auto numeric = std::make_shared<Question>(host, port, runtime);
  numeric->Ask(AI_NUMERICHOST);
  if (numeric->code() == 0) {
    numeric->Finish();
    return std::make_unique<Lookup>(std::move(numeric));
  }
  if (GivenUpOfProcess().Count() >= kGivenUpMax) {
    return MetadataError("the resolver of this machine still looks for earlier names");
  }
  auto question = std::make_shared<Question>(host, port, runtime);
  auto lookup = std::make_unique<Lookup>(question);
  lookup->thread_ = runtime.Spawn("mc-lookup", [question] {
    question->Ask(0);
    question->Finish();
  });
  return lookup;
}

Lookup::Lookup(std::shared_ptr<Question> question) : question_(std::move(question)) {}

Lookup::~Lookup() {
  if (thread_ == nullptr || question_->ended()) return;
  GivenUpOfProcess().Keep(question_, std::move(thread_));
}

bool Lookup::WaitUntil(uint64_t deadline_ms) { return question_->done().WaitUntil(deadline_ms); }

Result<const addrinfo*> Lookup::Found() const {
  if (question_->code() != 0) return MetadataError(gai_strerror(question_->code()));
  if (question_->found() == nullptr) return MetadataError("the name has no address");
  return question_->found();
}

}  // namespace mooncake::metadata
