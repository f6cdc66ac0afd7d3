#include "obs/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/details/os.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/sink.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>

#include "obs/rate_limiter.h"

namespace mooncake::obs {
namespace {

constexpr const char* kPattern = "%Y-%m-%dT%H:%M:%S.%e%z %P %L %n: %v";

void WriteAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // Nowhere left to report it.
    data += written;
    size -= static_cast<size_t>(written);
  }
}

// Where lines go. Once it is a file, it stays the same descriptor: another file takes its place.
std::atomic<int> log_fd{STDERR_FILENO};

// Writes each line with one call. No lock: a child that is forked while another
// thread logs would inherit it locked.
class LineSink final : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    // Made anew for each line: it may be used by one thread only, and one per thread would be
    // gone when destructors log at the end of the process.
    spdlog::pattern_formatter formatter(kPattern);
    spdlog::memory_buf_t line;
    formatter.format(message, line);
    WriteAll(log_fd.load(std::memory_order_relaxed), line.data(), line.size());
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}
};

// Built outside of spdlog's registry, which belongs to the program that uses the library, and
// never destroyed: other threads may log until the process is gone.
spdlog::logger& Logger() {
  static spdlog::logger& logger = *[] {
    auto made = std::make_unique<spdlog::logger>("mooncake", std::make_shared<LineSink>());
    made->set_level(spdlog::level::info);
    return made.release();
  }();
  return logger;
}

RateLimiter& Limiter() {
  static RateLimiter& limiter = *std::make_unique<RateLimiter>().release();
  return limiter;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::off;
}

// The clock that stamps the lines.
uint64_t NowMs() {
  const auto now = spdlog::details::os::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

// Text from outside (a key, an answer of a server) may not forge a line.
std::string OneLine(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return line;
}

bool IsLogged(LogLevel level) {
  return level != LogLevel::kOff && Logger().should_log(ToSpdlog(level));
}

}  // namespace

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

Status SetLogFile(const std::string& path) {
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  constexpr int kMode = 0640;
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, kMode);
  if (fd < 0) return InvalidArgument(fmt::format("log file '{}': {}", path, strerror(errno)));
  int before = STDERR_FILENO;
  if (!log_fd.compare_exchange_strong(before, fd)) {
    dup3(fd, before, O_CLOEXEC);
    close(fd);
  }
  return Ok();
}

LogLevel GetLogLevel() {
  switch (Logger().level()) {
    case spdlog::level::trace:
    case spdlog::level::debug: return LogLevel::kDebug;
    case spdlog::level::info: return LogLevel::kInfo;
    case spdlog::level::warn: return LogLevel::kWarning;
    case spdlog::level::err:
    case spdlog::level::critical: return LogLevel::kError;
    default: return LogLevel::kOff;
  }
}

void Log(LogLevel level, std::string_view text) {
  if (!IsLogged(level)) return;
  const std::string line = OneLine(text);
  Logger().log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

void LogRateLimited(LogLevel level, std::string_view kind, std::string_view text) {
  if (!IsLogged(level)) return;
  const std::optional<uint64_t> held_back = Limiter().Admit(kind, NowMs());
  if (!held_back) return;
  if (*held_back == 0) return Log(level, fmt::format("{}: {}", kind, text));
  Log(level,
      fmt::format("{}: {} ({} more of this kind since the last line)", kind, text, *held_back));
}

}  // namespace mooncake::obs
