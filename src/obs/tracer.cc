#include "obs/tracer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/hash.h"
#include "obs/log.h"
#include "obs/trace_records.h"

namespace mooncake::obs {
namespace {

constexpr uint64_t kSampleSteps = uint64_t{1} << 53;
constexpr int kFileMode = 0640;
constexpr uint64_t kFlushLimitMs = 5'000;

bool LiesIn(const std::filesystem::path& folder, const std::filesystem::path& path) {
  const auto end = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first;
  return end == folder.end();
}

}  // namespace

Tracer::Tracer() : sampled_below_(kSampleSteps) {
  state_.service_instance_id = fmt::format("pid-{}", getpid());
}

Tracer::~Tracer() {
  if (fd_ >= 0) close(fd_);
}

Tracer& Tracer::OfProcess() {
  // A child goes on with the parent's file, and must find the lock free.
  static Tracer& tracer = *[] {
    Tracer* made = std::make_unique<Tracer>().release();
    pthread_atfork(LockForFork, UnlockAfterFork, UnlockInChild);
    return made;
  }();
  return tracer;
}

// Held from one function to the other, which the analysis cannot see.
void Tracer::LockForFork() MC_THREAD_ATTRIBUTE(no_thread_safety_analysis) {
  OfProcess().mu_.Lock();
}
void Tracer::UnlockAfterFork() MC_THREAD_ATTRIBUTE(no_thread_safety_analysis) {
  OfProcess().mu_.Unlock();
}

// The exporter's thread is the parent's; a lock of it may be held by a thread that is not here.
void Tracer::UnlockInChild() MC_THREAD_ATTRIBUTE(no_thread_safety_analysis) {
  Tracer& tracer = OfProcess();
  tracer.exporter_.store(nullptr);
  tracer.exports_.store(false);
  [[maybe_unused]] const OtlpExporter* left = tracer.owned_exporter_.release();
  tracer.state_.endpoint.clear();
  tracer.RefreshLocked();
  tracer.mu_.Unlock();
}

Status Tracer::OpenFile(const std::string& path, const std::string& within) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path file = fs::absolute(path, failed).lexically_normal();
  if (path.empty() || failed || !file.has_filename()) {
    return InvalidArgument(fmt::format("file '{}': expected the path of a file", path));
  }
  if (!within.empty()) {
    const fs::path folder = fs::weakly_canonical(within, failed);
    const fs::path parent = failed ? fs::path() : fs::weakly_canonical(file.parent_path(), failed);
    if (failed || !LiesIn(folder, parent)) {
      return InvalidArgument(
          fmt::format("file '{}': only files under '{}' are allowed here", path, within));
    }
  }
  fs::create_directories(file.parent_path(), failed);  // What failed shows below.
  const int no_follow = within.empty() ? 0 : O_NOFOLLOW;
  const int fd = open(
      file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | no_follow, kFileMode);
  base::MutexLock lock(mu_);
  if (fd < 0) {
    state_.last_error = fmt::format("file '{}': {}", path, strerror(errno));
    return InvalidArgument(state_.last_error);
  }
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  has_file_.store(true);
  state_.file = file.string();
  state_.last_error.clear();
  return Ok();
}

void Tracer::CloseFile() {
  base::MutexLock lock(mu_);
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  has_file_.store(false);
  state_.file.clear();
  RefreshLocked();
}

bool Tracer::HasSinkLocked() const { return fd_ >= 0 || exports_.load() || log_.load(); }

void Tracer::RefreshLocked() {
  on_ = on_ && HasSinkLocked();
  enabled_.store(on_);
}

Status Tracer::Enable(bool on) {
  base::MutexLock lock(mu_);
  if (on && !HasSinkLocked()) {
    return InvalidArgument("tracing has no file yet; give file=PATH or endpoint=URL");
  }
  on_ = on;
  RefreshLocked();
  return Ok();
}

Status Tracer::StartExport(Runtime& runtime, OtlpOptions options) {
  {
    base::MutexLock lock(mu_);
    if (owned_exporter_ != nullptr) {
      if (options.endpoint == state_.endpoint && exports_.load()) return Ok();
      return Conflict(fmt::format("spans go to '{}', which cannot be changed any more",
                                  owned_exporter_->options().endpoint));
    }
    options.resource.try_emplace("service.name", state_.service_name);
    options.resource.try_emplace("service.instance.id", state_.service_instance_id);
  }
  const std::string endpoint = options.endpoint;
  // Without the lock: it starts a thread.
  MC_TRY(std::unique_ptr<OtlpExporter> started, OtlpExporter::Start(runtime, std::move(options)));
  base::MutexLock lock(mu_);
  if (owned_exporter_ != nullptr) return Conflict("another thread has started an export");
  state_.service_name = started->options().resource.at("service.name");
  state_.service_instance_id = started->options().resource.at("service.instance.id");
  state_.endpoint = endpoint;
  owned_exporter_ = std::move(started);
  exporter_.store(owned_exporter_.get());
  exports_.store(true);
  return Ok();
}

void Tracer::StopExport(uint64_t limit_ms) {
  {
    base::MutexLock lock(mu_);
    exports_.store(false);
    RefreshLocked();
  }
  if (OtlpExporter* exporter = exporter_.load()) exporter->Stop(limit_ms);
}

void Tracer::SetItems(bool wanted, bool full_keys) {
  items_.store(wanted);
  full_keys_.store(full_keys);
}

Status Tracer::SetSampleRatio(double ratio) {
  base::MutexLock lock(mu_);
  if (owned_exporter_ != nullptr && ratio != state_.sample_ratio) {
    return Conflict("sample_ratio cannot be changed once spans are exported");
  }
  state_.sample_ratio = std::clamp(ratio, 0.0, 1.0);
  sampled_below_.store(
      static_cast<uint64_t>(state_.sample_ratio * static_cast<double>(kSampleSteps)));
  return Ok();
}

Status Tracer::SetService(const std::string* name, const std::string* instance_id) {
  base::MutexLock lock(mu_);
  const bool changes = (name != nullptr && *name != state_.service_name) ||
                       (instance_id != nullptr && *instance_id != state_.service_instance_id);
  if (changes && owned_exporter_ != nullptr) {
    return Conflict("the service's names cannot be changed once spans are exported");
  }
  if (name != nullptr) state_.service_name = *name;
  if (instance_id != nullptr) state_.service_instance_id = *instance_id;
  return Ok();
}

void Tracer::Flush() {
  int file = -1;
  {
    base::MutexLock lock(mu_);
    if (fd_ >= 0) file = fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  }
  if (file >= 0) {  // Without the lock, which every traced call takes.
    fsync(file);
    close(file);
  }
  if (OtlpExporter* exporter = exporter_.load()) exporter->Flush(kFlushLimitMs);
}

Tracer::State Tracer::state() const {
  base::MutexLock lock(mu_);
  State state = state_;
  state.enabled = enabled();
  if (owned_exporter_ != nullptr) {
    state.export_counts = owned_exporter_->counts();
    const std::string error = owned_exporter_->last_error();
    if (!error.empty()) state.last_error = error;
  }
  return state;
}

uint64_t Tracer::Begin() {
  const uint64_t request = next_request_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t draw = base::Mix64(request) >> 11;
  return draw < sampled_below_.load(std::memory_order_relaxed) ? request : 0;
}

void Tracer::Write(const TraceSpan& span) {
  if (span.request == 0) return;
  if (exports_.load(std::memory_order_relaxed)) {
    if (OtlpExporter* exporter = exporter_.load(std::memory_order_acquire)) exporter->Add(span);
  }
  if (log_.load(std::memory_order_relaxed)) LogInfo(LogLine(span));
  if (has_file_.load(std::memory_order_relaxed)) Append(JsonLine(span));
}

void Tracer::WriteItems(uint64_t request, const TracedItems& items) {
  if (request != 0) Append(JsonLine(request, items, full_keys_.load()));
}

void Tracer::Append(std::string_view line) {
  base::MutexLock lock(mu_);
  if (fd_ < 0) return;
  ssize_t written = -1;
  do {
    written = write(fd_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) {
    ++state_.written;
  } else {
    state_.last_error = fmt::format("file '{}': {}", state_.file,
                                    written < 0 ? strerror(errno) : "written in part");
  }
}

}  // namespace mooncake::obs
