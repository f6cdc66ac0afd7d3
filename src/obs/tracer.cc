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
#include <nlohmann/json.hpp>
#include <utility>

#include "base/hash.h"
#include "obs/trace_keys.h"

namespace mooncake::obs {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kSampleSteps = uint64_t{1} << 53;
constexpr int kFileMode = 0640;

std::string LineOf(const Json& record) {
  return record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Of this process alone, and the same for all records of a request.
std::string RequestId(uint64_t request) { return fmt::format("{:x}-{:x}", getpid(), request); }

Json RecordOf(uint64_t request, const TraceSpan& span) {
  const std::string id = RequestId(request);
  const std::string operation(span.operation);
  const std::string name = "store." + operation;
  return {{"timestamp_unix_ms", span.start_unix_ms},
          {"duration_us", span.duration_us},
          {"span_name", name},
          {"phase", "api"},
          {"flow", span.flow},
          {"role", "root"},
          {"request_id", id},
          {"root_operation", operation},
          {"result", span.result},
          {"bytes_out", span.bytes_out},
          {"attributes",
           {{"mooncake.component", "store-rs"},
            {"mooncake.phase", "api"},
            {"mooncake.flow", span.flow},
            {"mooncake.span_role", "root"},
            {"mooncake.request_id", id},
            {"mooncake.root_operation", operation},
            {"mooncake.operation", operation},
            {"mooncake.result", span.result},
            {"mooncake.bytes_in", span.bytes_in},
            {"mooncake.bytes_out", span.bytes_out},
            {"mooncake.item_count", span.item_count},
            {"mooncake.tenant", span.tenant}}}};
}

Json RecordOf(const TracedItems& all, size_t index, bool full_keys) {
  const TracedItem& item = all.items[index];
  const KeyParts parts = PartsOfKey(item.key);
  return {{"index", index},
          {"key_hash", HashOfKey(item.key)},
          {"key_prefix", PrefixOfKey(item.key)},
          {"key", full_keys ? Json(item.key) : Json(nullptr)},
          {"tenant", all.tenant},
          {"domain", all.domain},
          {"object_set", all.object_set},
          {"tp_rank", parts.tp_rank ? Json(*parts.tp_rank) : Json(nullptr)},
          {"kv_kind", parts.kv_kind.empty() ? Json(nullptr) : Json(parts.kv_kind)},
          {"size", item.size},
          {"read_len", item.read_len < 0 ? Json(nullptr) : Json(item.read_len)},
          {"status", item.status}};
}

Json RecordOf(uint64_t request, const TracedItems& all, bool full_keys) {
  Json items = Json::array();
  uint64_t bytes = 0;
  for (size_t i = 0; i < all.items.size(); ++i) {
    items.push_back(RecordOf(all, i, full_keys));
    bytes += all.items[i].size;
  }
  return {{"record_type", "store.api_items.v1"},
          {"timestamp_unix_ms", all.unix_ms},
          {"trace_request_id", RequestId(request)},
          {"operation", all.operation},
          {"tenant", all.tenant},
          {"domain", all.domain},
          {"object_set", all.object_set},
          {"runtime_id", all.runtime_id},
          {"item_count", all.items.size()},
          {"batch_bytes", bytes},
          {"items", std::move(items)}};
}

bool LiesIn(const std::filesystem::path& folder, const std::filesystem::path& path) {
  const auto end = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first;
  return end == folder.end();
}

}  // namespace

Tracer::Tracer() : sampled_below_(kSampleSteps) {
  state_.service_instance_id = fmt::format("pid-{}", getpid());
}

Tracer& Tracer::OfProcess() {
  // A child goes on with the parent's file, and must find the lock free.
  static Tracer& tracer = *[] {
    Tracer* made = std::make_unique<Tracer>().release();
    pthread_atfork(LockForFork, UnlockAfterFork, UnlockAfterFork);
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
  state_.file = file.string();
  state_.last_error.clear();
  return Ok();
}

void Tracer::CloseFile() {
  base::MutexLock lock(mu_);
  enabled_.store(false);
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  state_.file.clear();
}

Status Tracer::Enable(bool on) {
  base::MutexLock lock(mu_);
  if (on && fd_ < 0) return InvalidArgument("tracing has no file yet; give file=PATH");
  enabled_.store(on);
  return Ok();
}

void Tracer::SetItems(bool wanted, bool full_keys) {
  items_.store(wanted);
  full_keys_.store(full_keys);
}

void Tracer::SetSampleRatio(double ratio) {
  base::MutexLock lock(mu_);
  state_.sample_ratio = std::clamp(ratio, 0.0, 1.0);
  sampled_below_.store(
      static_cast<uint64_t>(state_.sample_ratio * static_cast<double>(kSampleSteps)));
}

void Tracer::SetService(const std::string* name, const std::string* instance_id) {
  base::MutexLock lock(mu_);
  if (name != nullptr) state_.service_name = *name;
  if (instance_id != nullptr) state_.service_instance_id = *instance_id;
}

void Tracer::Flush() {
  base::MutexLock lock(mu_);
  if (fd_ >= 0) fsync(fd_);
}

Tracer::State Tracer::state() const {
  base::MutexLock lock(mu_);
  State state = state_;
  state.enabled = enabled();
  return state;
}

uint64_t Tracer::Begin() {
  const uint64_t request = next_request_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t draw = base::Mix64(request) >> 11;
  return draw < sampled_below_.load(std::memory_order_relaxed) ? request : 0;
}

void Tracer::Write(uint64_t request, const TraceSpan& span) {
  if (request != 0) Append(LineOf(RecordOf(request, span)));
}

void Tracer::WriteItems(uint64_t request, const TracedItems& items) {
  if (request != 0) Append(LineOf(RecordOf(request, items, full_keys_.load())));
}

void Tracer::Append(std::string_view line) {
  base::MutexLock lock(mu_);
  if (fd_ < 0) return;
  ssize_t written = -1;
  do {
    written = write(fd_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<ssize_t>(line.size())) {
    state_.last_error = fmt::format("file '{}': {}", state_.file,
                                    written < 0 ? strerror(errno) : "written in part");
  }
}

}  // namespace mooncake::obs
