#include "obs/otlp_exporter.h"

#include <fmt/format.h>
#include <pthread.h>

// As the compiled part of the library was built: its classes differ with these.
#define CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_ZLIB_SUPPORT
#define CPPHTTPLIB_BROTLI_SUPPORT
#include <httplib.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/url.h"
#include "obs/log.h"
#include "obs/trace_records.h"

namespace mooncake::obs {

namespace {

constexpr size_t kQueueMax = 8'192;  // Spans; some 2 MiB.
constexpr size_t kBatchMax = 512;
constexpr uint64_t kGatherMs = 1'000;  // A batch waits that long for more.
constexpr int kTriesMax = 3;
constexpr uint64_t kRetryWaitMs = 500;  // Doubles with each try.
// What a collector says is not read; it may be no collector, and go on for ever.
constexpr size_t kAnswerBytesMax = size_t{16} << 10;
// Of scheme, host and port; a name in DNS has at most 253. httplib takes them apart with a regular
// expression, whose matcher calls itself for each character and would run out of stack.
constexpr size_t kAddressBytesMax = 300;

// A collector that closes a connection while this thread writes to it must not end the process,
// and no signal of the process is handled here.
void BlockSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

// Where the path begins.
size_t AddressSize(const std::string& endpoint) {
  return std::min(endpoint.find('/', endpoint.find("://") + 3), endpoint.size());
}

bool IsWorthARetry(int status) { return status == 429 || status >= 500; }

}  // namespace

class OtlpExporter::Connection {
 public:
  Connection(Runtime& runtime, const OtlpOptions& options)
      : runtime_(runtime), timeout_ms_(options.timeout_ms) {
    const size_t path = AddressSize(options.endpoint);
    client_ = std::make_unique<httplib::Client>(options.endpoint.substr(0, path));
    path_ = path == options.endpoint.size() ? "/" : options.endpoint.substr(path);
    const auto seconds = static_cast<time_t>(options.timeout_ms / 1'000);
    const auto rest_us = static_cast<time_t>(options.timeout_ms % 1'000 * 1'000);
    client_->set_connection_timeout(seconds, rest_us);
    client_->set_read_timeout(seconds, rest_us);
    client_->set_write_timeout(seconds, rest_us);
    client_->set_keep_alive(true);
    client_->set_decompress(false);
    for (const auto& [name, value] : options.headers) headers_.emplace(name, value);
  }

  // 0: there was no answer; `error` says why. An answer that is too long or too slow is cut off,
  // and its status counts.
  int Post(const std::string& body, std::string* error) {
    int status = 0;
    size_t received = 0;
    uint64_t answered_ms = 0;
    httplib::Request request;
    request.method = "POST";
    request.path = path_;
    request.headers = headers_;
    request.set_header("Content-Type", "application/json");
    request.body = body;
    request.response_handler = [&](const httplib::Response& response) {
      status = response.status;
      answered_ms = runtime_.NowMs();
      return true;
    };
    request.content_receiver = [&](const char*, size_t count, uint64_t, uint64_t) {
      received += count;
      return received <= kAnswerBytesMax && runtime_.NowMs() - answered_ms < timeout_ms_;
    };
    const httplib::Result result = client_->send(request);
    if (result) status = result->status;  // The handler is not told of a 204, which has no body.
    if (!result && result.error() != httplib::Error::Canceled) {
      *error = httplib::to_string(result.error());
      return 0;
    }
    if (status / 100 != 2) *error = fmt::format("it answered {}", status);
    return status;
  }

 private:
  Runtime& runtime_;
  const uint64_t timeout_ms_;
  std::unique_ptr<httplib::Client> client_;
  std::string path_;
  httplib::Headers headers_;
};

Result<std::unique_ptr<OtlpExporter>> OtlpExporter::Start(Runtime& runtime, OtlpOptions options) {
  const auto url = base::ParseUrl("endpoint", options.endpoint);
  const bool known = url.ok() && (url->scheme == "http" || url->scheme == "https");
  if (!known || url->host.empty()) {
    return InvalidArgument(
        fmt::format("endpoint '{}': expected http://HOST:PORT/PATH or https://HOST:PORT/PATH",
                    base::RedactUrl(options.endpoint)));
  }
  if (const size_t size = AddressSize(options.endpoint); size > kAddressBytesMax) {
    return InvalidArgument(
        fmt::format("endpoint: scheme, host and port have {} bytes, at most {} are allowed", size,
                    kAddressBytesMax));
  }
  // The endpoint is in pages, logs and errors; and a password with a slash is not told from a path.
  if (options.endpoint.find('@') != std::string::npos) {
    return InvalidArgument(
        "endpoint: a user and a password are not taken in the URL, send them in a header; an @ in "
        "the path is written %40");
  }
  auto exporter = std::make_unique<OtlpExporter>(runtime, std::move(options));
  exporter->thread_ = runtime.Spawn("mc-otlp", [raw = exporter.get()] { raw->Loop(); });
  return exporter;
}

OtlpExporter::OtlpExporter(Runtime& runtime, OtlpOptions options)
    : runtime_(runtime),
      options_(std::move(options)),
      seed_(runtime.Random() | 1),
      work_(runtime.NewEvent()),
      progress_(runtime.NewEvent()) {}

OtlpExporter::~OtlpExporter() {
  stop_.store(true);
  work_->Set();
  thread_.reset();
}

void OtlpExporter::Add(TraceSpan span) {
  bool full_batch = false;
  {
    base::MutexLock lock(mu_);
    if (stop_.load() || queue_.size() >= kQueueMax) {
      ++counts_.queue_full;
      return;
    }
    queue_.push_back(std::move(span));
    ++added_;
    full_batch = queue_.size() == kBatchMax;
  }
  if (full_batch) work_->Set();
}

std::vector<TraceSpan> OtlpExporter::Take() {
  base::MutexLock lock(mu_);
  const auto count = static_cast<ptrdiff_t>(std::min(queue_.size(), kBatchMax));
  std::vector<TraceSpan> batch(std::make_move_iterator(queue_.begin()),
                               std::make_move_iterator(queue_.begin() + count));
  queue_.erase(queue_.begin(), queue_.begin() + count);
  return batch;
}

void OtlpExporter::Loop() {
  BlockSignals();
  Connection connection(runtime_, options_);
  while (true) {
    work_->WaitUntil(runtime_.NowMs() + kGatherMs);
    work_->Clear();
    const bool last = stop_.load();
    for (std::vector<TraceSpan> batch = Take(); !batch.empty(); batch = Take()) {
      Send(connection, batch);
    }
    if (last) return progress_->Set();
  }
}

void OtlpExporter::Send(Connection& connection, const std::vector<TraceSpan>& batch) {
  const std::string body = OtlpBody(batch, options_.resource, seed_);
  std::string error;
  bool sent = false;
  for (int attempt = 0; attempt < kTriesMax; ++attempt) {
    const int status = connection.Post(body, &error);
    sent = status / 100 == 2;
    if (sent || (status != 0 && !IsWorthARetry(status))) break;
    if (hurry_.load() || stop_.load() || attempt + 1 == kTriesMax) break;
    work_->WaitUntil(runtime_.NowMs() + (kRetryWaitMs << attempt));
  }
  if (!sent) {
    const std::string text =
        fmt::format("{}: {} spans were dropped: {}", options_.endpoint, batch.size(), error);
    LogRateLimited(LogLevel::kWarning, "trace.otlp", text);
    base::MutexLock lock(mu_);
    last_error_ = text;
  }
  Settle(batch.size(), sent);
}

void OtlpExporter::Settle(size_t count, bool sent) {
  {
    base::MutexLock lock(mu_);
    settled_ += count;
    (sent ? counts_.exported : counts_.refused) += count;
    if (sent) last_error_.clear();
  }
  progress_->Set();
}

bool OtlpExporter::Flush(uint64_t limit_ms) {
  const uint64_t deadline_ms = runtime_.NowMs() + limit_ms;
  uint64_t wanted = 0;
  {
    base::MutexLock lock(mu_);
    wanted = added_;
  }
  hurry_.store(true);
  work_->Set();
  const auto settled = [&] {
    base::MutexLock lock(mu_);
    return settled_ >= wanted;
  };
  bool done = settled();
  while (!done && runtime_.NowMs() < deadline_ms) {
    progress_->Clear();
    if (!settled()) progress_->WaitUntil(std::min(deadline_ms, runtime_.NowMs() + kGatherMs));
    done = settled();
  }
  hurry_.store(false);
  return done;
}

void OtlpExporter::Stop(uint64_t limit_ms) {
  if (stop_.exchange(true)) return;
  // A thread that hangs in a connection is left to itself.
  if (Flush(limit_ms)) thread_->Join();
}

OtlpExporter::Counts OtlpExporter::counts() const {
  base::MutexLock lock(mu_);
  return counts_;
}

std::string OtlpExporter::last_error() const {
  base::MutexLock lock(mu_);
  return last_error_;
}

}  // namespace mooncake::obs
