// Many processes on few keys, with room for a third of them: what the store promises has to hold
// while everything is overwritten, evicted and removed all the time, also when a process dies.
// MC_HAMMER_SECONDS sets how long each test hammers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "integration/hammer/values.h"
#include "integration/hammer/worker.h"
#include "runtime/real_runtime.h"

namespace mooncake::hammer {
namespace {

constexpr int kProcesses = 8;
constexpr int kThreads = 4;
constexpr int kKept = 200;
constexpr uint64_t kAnswerMs = 120'000;  // Far above what any command needs.
// On average a value has a quarter of kValueMax.
constexpr uint64_t kAllBytes = kKeys * (kValueMax / 4);

uint64_t RunMs() {
  const char* seconds = std::getenv("MC_HAMMER_SECONDS");
  return 1000 * (seconds != nullptr ? std::strtoull(seconds, nullptr, 10) : 5);
}

// One worker process and the two pipes to it.
class Process {
 public:
  Process(const std::string& url, uint64_t segment_bytes, int number) {
    int commands[2], reports[2];
    EXPECT_EQ(pipe2(commands, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(reports, O_CLOEXEC), 0);
    // Out of the way first: the pipes may have got the very numbers that they are to have.
    const int in = fcntl(commands[0], F_DUPFD_CLOEXEC, 10);
    const int out = fcntl(reports[1], F_DUPFD_CLOEXEC, 10);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in, kCommandFd);
    posix_spawn_file_actions_adddup2(&actions, out, kReportFd);
    std::vector<std::string> words = {"hammer",
                                      "--worker",
                                      url,
                                      std::to_string(segment_bytes),
                                      std::to_string(kThreads),
                                      std::to_string(number + 1)};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    for (int fd : {commands[0], reports[1], in, out}) close(fd);
    commands_ = commands[1];
    reports_ = reports[0];
  }
  ~Process() {
    if (pid_ > 0) Kill();
    close(commands_);
    close(reports_);
  }
  Process(const Process&) = delete;

  void Say(const std::string& command) {
    const std::string line = command + "\n";
    EXPECT_EQ(write(commands_, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }
  // The next line; empty when the process has gone or says nothing for too long.
  std::string Hear() {
    std::string line;
    char letter = 0;
    pollfd wait{reports_, POLLIN, 0};
    while (poll(&wait, 1, static_cast<int>(kAnswerMs)) == 1 && read(reports_, &letter, 1) == 1) {
      if (letter == '\n') return line;
      line += letter;
    }
    return "";
  }
  std::string Ask(const std::string& command) {
    Say(command);
    return Hear();
  }
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  int Quit() {
    Say("quit");
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  bool alive() const { return pid_ > 0; }

 private:
  pid_t pid_ = -1;
  int commands_ = -1;
  int reports_ = -1;
};

struct Report {
  uint64_t puts = 0, puts_failed = 0, gets = 0, get_errors = 0, wrong = 0, worst_ms = 0;
  std::string first_error;
};

Report ParseReport(const std::string& line) {
  Report report;
  std::istringstream words(line);
  words >> report.puts >> report.puts_failed >> report.gets >> report.get_errors >> report.wrong >>
      report.worst_ms;
  std::getline(words, report.first_error);
  return report;
}

class Hammer : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "hammer-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    processes_.clear();
    std::filesystem::remove_all(folder_);
  }

  void Start(uint64_t segment_bytes) {
    const std::string url = "sqlite://" + folder_ + "/cluster.db";
    for (int i = 0; i < kProcesses; ++i) {
      processes_.push_back(std::make_unique<Process>(url, segment_bytes, i));
    }
    for (auto& process : processes_) names_.push_back(process->Hear());
    for (const std::string& name : names_) ASSERT_FALSE(name.empty()) << "a worker did not start";
  }

  void StartHammering(uint64_t ms) {
    for (auto& process : processes_) process->Say("run " + std::to_string(ms));
  }
  // The sum of what those that live did, each of which must have kept to the limits.
  Report Finish() {
    Report sum;
    for (auto& process : processes_) {
      if (!process->alive()) continue;
      const std::string line = process->Hear();
      EXPECT_FALSE(line.empty()) << "a worker is gone or hangs";
      const Report report = ParseReport(line);
      sum.puts += report.puts;
      sum.puts_failed += report.puts_failed;
      sum.gets += report.gets;
      sum.get_errors += report.get_errors;
      sum.wrong += report.wrong;
      sum.worst_ms = std::max(sum.worst_ms, report.worst_ms);
      sum.first_error += report.first_error;
    }
    RecordProperty("puts", std::to_string(sum.puts));
    RecordProperty("gets", std::to_string(sum.gets));
    EXPECT_EQ(sum.wrong, 0u) << sum.first_error;
    EXPECT_LT(sum.worst_ms, kRequestTimeoutMs + 2'000);
    return sum;
  }

  uint64_t Used() {
    uint64_t bytes = 0;
    for (auto& process : processes_) {
      if (process->alive()) bytes += std::stoull("0" + process->Ask("used"));
    }
    return bytes;
  }
  // Used bytes become those of the live objects: within a lease, but for copies that somebody who
  // is gone was about to confirm. They rest until no publish of them can come any more.
  void ExpectCleanBooks() {
    const uint64_t limit_ms = runtime_.NowMs() + kRequestTimeoutMs + kStallTimeoutMs + kLeaseMs;
    uint64_t used = 0, live = 0;
    do {
      used = Used();
      live = std::stoull("0" + processes_.front()->Ask("live"));
      if (used == live) break;
      runtime_.SleepMs(100);
    } while (runtime_.NowMs() < limit_ms);
    EXPECT_EQ(used, live);
    EXPECT_GT(live, 0u);
  }
  void Quit() {
    for (auto& process : processes_) {
      if (process->alive()) {
        EXPECT_EQ(process->Quit(), 0) << "a worker failed";
      }
    }
  }

  runtime::RealRuntime runtime_;
  std::string folder_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::string> names_;
};

TEST_F(Hammer, NoByteIsWrongNoPutFailsAndTheBooksAreRight) {
  Start(kAllBytes / 3 / kProcesses);
  StartHammering(RunMs());
  const Report report = Finish();
  EXPECT_EQ(report.puts_failed, 0u) << "of " << report.puts << ": " << report.first_error;
  EXPECT_EQ(report.get_errors, 0u) << "of " << report.gets << ": " << report.first_error;
  EXPECT_GT(report.puts, 0u);
  ExpectCleanBooks();
  Quit();
}

TEST_F(Hammer, AKilledProcessTakesOnlyItsOwnKeysAndLeavesNoDebt) {
  Start(kAllBytes);
  ASSERT_EQ(processes_[0]->Ask("keep " + std::to_string(kKept)), "0");
  std::istringstream owners(processes_[0]->Ask("owners " + std::to_string(kKept)));
  StartHammering(RunMs());
  runtime_.SleepMs(RunMs() / 2);
  processes_[3]->Kill();
  const Report report = Finish();
  std::fprintf(stderr,
               "after a kill: %llu of %llu puts failed, %llu of %llu reads; worst %llu ms;%s\n",
               static_cast<unsigned long long>(report.puts_failed),
               static_cast<unsigned long long>(report.puts),
               static_cast<unsigned long long>(report.get_errors),
               static_cast<unsigned long long>(report.gets),
               static_cast<unsigned long long>(report.worst_ms), report.first_error.c_str());
  ExpectCleanBooks();
  for (int reader : {0, 7}) {
    const std::string seen = processes_[reader]->Ask("check " + std::to_string(kKept));
    ASSERT_EQ(seen.size(), static_cast<size_t>(kKept));
    std::istringstream owner_names(owners.str());
    std::string owner;
    for (int i = 0; owner_names >> owner; ++i) {
      EXPECT_EQ(seen[i], owner == names_[3] ? '-' : '+') << KeptKeyOf(i) << " of " << owner;
    }
  }
  Quit();
}

}  // namespace
}  // namespace mooncake::hammer

int main(int argc, char** argv) {
  if (argc == 6 && std::string_view(argv[1]) == "--worker") {
    return mooncake::hammer::RunWorker(argv[2], std::stoull(argv[3]), std::stoi(argv[4]),
                                       std::stoull(argv[5]));
  }
  signal(SIGPIPE, SIG_IGN);  // A worker that died is a failure to report, not our end.
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
