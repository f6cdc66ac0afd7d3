#include "unit/transfer/test_service.h"

#include <algorithm>
#include <cstdlib>

namespace mooncake::transfer {
namespace {

constexpr uint64_t kDropPiece = 1'000;
constexpr uint64_t kWaitMs = 60'000;

std::vector<uint64_t> NumbersIn(std::string_view text) {
  std::vector<uint64_t> numbers;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    char* end = nullptr;
    const uint64_t number = std::strtoull(at, &end, 10);
    if (end == at) break;
    numbers.push_back(number);
    at = end;
  }
  return numbers;
}

}  // namespace

// Not instrumented: a peer under ThreadSanitizer would look stalled while it fills a large value.
__attribute__((no_sanitize("thread"))) static void FillPattern(std::byte* data, uint64_t size) {
  for (uint64_t i = 0; i < size; ++i) data[i] = PatternAt(i);
}

std::vector<std::byte> PatternBytes(uint64_t size) {
  std::vector<std::byte> bytes(size);
  FillPattern(bytes.data(), size);
  return bytes;
}

class TestCall final : public ServerCall {
 public:
  TestCall(TestService& service, const IncomingRequest& request)
      : service_(service),
        message_(request.message),
        size_(request.payload_size),
        deadline_ms_(request.deadline_ms) {
    ++service_.live_calls_;
  }
  ~TestCall() override { --service_.live_calls_; }

  bool Prepare(bool may_block) override {
    if (op() == 'b' && !may_block) return false;
    buffer_.resize(op() == 's' ? size_ + 1 : size_);
    const MutableBytes all(buffer_);
    if (op() != 'd') {
      if (!buffer_.empty()) targets_.push_back(all);
      return true;
    }
    for (uint64_t at = 0; at < size_; at += kDropPiece) {
      MutableBytes piece = all.subspan(at, std::min(kDropPiece, size_ - at));
      const bool drop = at / kDropPiece % 2 == 1;
      targets_.push_back(drop ? MutableBytes(static_cast<std::byte*>(nullptr), piece.size())
                              : piece);
    }
    return true;
  }

  std::span<const MutableBytes> PayloadTargets() override { return targets_; }

  bool Run(bool may_block, Reply& reply) override {
    if ((op() == 'b' || op() == 'w') && !may_block) return false;
    if (op() == 'w') service_.release_->WaitUntil(service_.runtime_.NowMs() + kWaitMs);
    Answer(reply);
    ++service_.served_;
    return true;
  }

 private:
  char op() const { return message_.empty() ? 'e' : message_[0]; }

  void Answer(Reply& reply) {
    reply.message = message_;
    if (op() == 'e' || op() == 'b') {
      reply.payload.emplace_back(buffer_);
    } else if (op() == 'g') {
      AnswerGet(reply);
    } else if (op() == 'p') {
      reply.message = buffer_ == PatternBytes(size_) ? "ok" : "bad";
    } else if (op() == 't') {
      reply.message = std::to_string(deadline_ms_ - service_.runtime_.NowMs());
    } else if (op() == 'd') {
      uint64_t kept = 0;
      for (uint64_t i = 0; i < size_; ++i) {
        if (i / kDropPiece % 2 == 0 && buffer_[i] == PatternAt(i)) ++kept;
      }
      reply.message = std::to_string(kept);
    }
  }

  void AnswerGet(Reply& reply) {
    const auto numbers = NumbersIn(std::string_view(message_).substr(1));
    const uint64_t size = numbers.empty() ? 0 : numbers[0];
    const uint64_t pieces = numbers.size() > 1 ? numbers[1] : 1;
    buffer_ = PatternBytes(size);
    for (uint64_t i = 0; i < pieces; ++i) {
      const uint64_t begin = size * i / pieces, end = size * (i + 1) / pieces;
      reply.payload.push_back(ConstBytes(buffer_).subspan(begin, end - begin));
    }
  }

  TestService& service_;
  const std::string message_;
  const uint64_t size_;
  const uint64_t deadline_ms_;
  std::vector<std::byte> buffer_;
  std::vector<MutableBytes> targets_;
};

TestService::TestService(Runtime& runtime) : runtime_(runtime), release_(runtime.NewEvent()) {}
TestService::~TestService() = default;

std::unique_ptr<ServerCall> TestService::Accept(const IncomingRequest& request) {
  if (request.message.starts_with('x')) return nullptr;
  ++accepted_;
  return std::make_unique<TestCall>(*this, request);
}

void TestObserver::OnSend(size_t piece, ConstBytes chunk) {
  sent_bytes += chunk.size();
  chunk_max = std::max(chunk_max, chunk.size());
  if (on_send) on_send(piece, chunk);
}

void TestObserver::OnRestart() {
  ++restarts;
  sent_bytes = 0;
}

Result<std::span<const MutableBytes>> TestObserver::OnReply(std::string_view reply, uint64_t size) {
  ++replies;
  message = reply;
  if (!refuse.ok()) return refuse.error();
  payload.resize(size);
  pieces_ = split ? split(MutableBytes(payload)) : std::vector<MutableBytes>{payload};
  piece_done_.assign(pieces_.size(), 0);
  return std::span<const MutableBytes>(pieces_);
}

void TestObserver::OnReceive(size_t piece, ConstBytes chunk) {
  received_bytes += chunk.size();
  chunk_max = std::max(chunk_max, chunk.size());
  in_order = in_order && piece >= piece_ && piece < pieces_.size() &&
             chunk.data() == pieces_[piece].data() + piece_done_[piece];
  piece_ = piece;
  if (piece < piece_done_.size()) piece_done_[piece] += chunk.size();
  if (on_receive) on_receive();
}

TestCallSpec::TestCallSpec(std::string endpoint_in, std::string message_in, uint64_t payload_size)
    : endpoint(std::move(endpoint_in)),
      message(std::move(message_in)),
      bytes(PatternBytes(payload_size)),
      pieces{ConstBytes(bytes)} {}

Call TestCallSpec::Make() {
  Call call;
  call.endpoint = endpoint;
  call.type = 7;
  call.message = message;
  call.payload = pieces;
  call.deadline_ms = deadline_ms;
  call.observer = &observer;
  return call;
}

Call CallOne(Transport& transport, TestCallSpec& spec) {
  Call call = spec.Make();
  transport.CallMany({&call, 1});
  return call;
}

}  // namespace mooncake::transfer
