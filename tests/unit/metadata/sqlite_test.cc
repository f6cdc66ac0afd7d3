#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "metadata/sqlite/sqlite_metadata.h"
#include "support/leases.h"
#include "support/manual_runtime.h"
#include "unit/metadata/contract.h"

namespace mooncake::testing {
namespace {

namespace fs = std::filesystem;
using metadata::SqliteMetadata;
using ::testing::HasSubstr;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "mooncake-sqlite-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  std::string File(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// A folder, and handles to a file in it under a clock that the test moves.
class SqliteWorld final : public MetadataWorld {
 public:
  std::unique_ptr<MetadataStore> Connect(const std::string& keyspace) override {
    auto store = SqliteMetadata::Open("sqlite://" + Path(), {keyspace}, runtime_);
    EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().ToString());
    return store.ok() ? *std::move(store) : nullptr;
  }
  void Pass(uint64_t ms) override { runtime_.Advance(ms); }
  void Forget() override {
    for (const char* suffix : {"", "-wal", "-shm"}) fs::remove(Path() + suffix);
  }

  std::string Path() const { return folder_.File("deep/er/meta.db"); }
  ManualRuntime& runtime() { return runtime_; }

 private:
  ManualRuntime runtime_;
  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Sqlite, MetadataContract,
                         Worlds("sqlite", [] { return std::make_unique<SqliteWorld>(); }));

class SqliteMetadataTest : public ::testing::Test {
 protected:
  SqliteWorld world_;
  std::unique_ptr<MetadataStore> store_ = world_.Connect("ks");
};

TEST_F(SqliteMetadataTest, RefusesOtherUrlsAndNamesAFolderItCannotMake) {
  for (const char* url : {"sqlite://", "sqlite:///", "sqlite://rel.db", "sqlite:/a.db", "/a.db"}) {
    EXPECT_EQ(SqliteMetadata::Open(url, {"ks"}, world_.runtime()).code(),
              ErrorCode::kInvalidArgument)
        << url;
  }
  auto store = SqliteMetadata::Open("sqlite:///dev/null/x/meta.db", {"ks"}, world_.runtime());
  ASSERT_EQ(store.code(), ErrorCode::kMetadata);
  EXPECT_THAT(store.error().context, HasSubstr("/dev/null/x"));
}

TEST_F(SqliteMetadataTest, ARecordSurvivesItsWriter) {
  ASSERT_TRUE(store_->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
  store_.reset();
  store_ = world_.Connect("ks");
  EXPECT_EQ(store_->Acquire(Named("n"), 60'000, std::nullopt, false).code(), ErrorCode::kConflict);
}

TEST_F(SqliteMetadataTest, HandlesMeetAgainAfterTheFileWasDeleted) {
  std::unique_ptr<MetadataStore> other = world_.Connect("ks");
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(store_->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
    ASSERT_EQ(other->ReadChanges(0).value_or({}).leases.size(), 1u);
    // Only the database: its log stays behind, and describes a file that is gone.
    fs::remove(world_.Path());
    ASSERT_TRUE(store_->Acquire(Named("a"), 60'000, std::nullopt, false).ok());
    Result<NodeId> id = other->Acquire(Named("b"), 60'000, std::nullopt, false);
    ASSERT_TRUE(id.ok()) << id.error().ToString();
    EXPECT_EQ(store_->ReadChanges(0).value_or({}).leases.size(), 2u);
    EXPECT_EQ(other->ReadChanges(0).value_or({}).leases.size(), 2u);
    EXPECT_EQ(world_.Connect("ks")->ReadChanges(0).value_or({}).leases.size(), 2u);
    world_.Forget();
  }
}

TEST_F(SqliteMetadataTest, GoesOnAfterTheFolderWasDeleted) {
  fs::remove_all(fs::path(world_.Path()).parent_path());
  EXPECT_TRUE(store_->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
}

TEST_F(SqliteMetadataTest, AFileThatIsNoDatabaseIsAnErrorThatNamesIt) {
  world_.Forget();
  std::ofstream(world_.Path()) << std::string(8192, 'x');
  Result<uint64_t> revision = store_->Poll();
  ASSERT_EQ(revision.code(), ErrorCode::kMetadata);
  EXPECT_THAT(revision.error().context, HasSubstr("meta.db"));
  world_.Forget();
  EXPECT_TRUE(store_->Poll().ok());
}

TEST_F(SqliteMetadataTest, AForkedChildIsRefusedAndHarmsNothing) {
  ASSERT_TRUE(store_->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = store_->Poll().code() == ErrorCode::kInvalidState;
    store_.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(store_->ReadChanges(0).value_or({}).leases.size(), 1u);
}

// Each process opens the same new file and takes every name that it can get.
TEST_F(SqliteMetadataTest, ManyProcessesShareOneFile) {
  constexpr int kProcesses = 4;
  constexpr int kNames = 25;
  world_.Forget();
  int results[2];
  ASSERT_EQ(pipe(results), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    std::unique_ptr<MetadataStore> store = world_.Connect("ks");
    for (int name = 0; store != nullptr && name < kNames; ++name) {
      const LeaseRecord record = Named("n" + std::to_string(name));
      const auto id = store->Acquire(record, 60'000, std::nullopt, false);
      const char outcome = id.ok() ? 'w' : id.code() == ErrorCode::kConflict ? 'l' : 'x';
      if (write(results[1], &outcome, 1) != 1) break;
    }
    _exit(0);
  }
  close(results[1]);
  std::string outcomes;
  for (char outcome = 0; read(results[0], &outcome, 1) == 1;) outcomes += outcome;
  close(results[0]);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  EXPECT_EQ(outcomes.size(), size_t{kProcesses} * kNames);
  EXPECT_EQ(std::ranges::count(outcomes, 'w'), kNames);
  EXPECT_EQ(std::ranges::count(outcomes, 'x'), 0);
}

TEST_F(SqliteMetadataTest, AFileThatStaysLockedIsAnErrorInTime) {
  auto hasty = *SqliteMetadata::Open("sqlite://" + world_.Path(),
                                     {.keyspace = "ks", .busy_timeout_ms = 50}, world_.runtime());
  const metadata::SqliteConnection::BusyLimit limit_ms = 50;
  auto holder = *metadata::SqliteConnection::Open(world_.Path(), limit_ms);
  holder->Exec("BEGIN IMMEDIATE");
  Result<NodeId> id = hasty->Acquire(Named("n"), 60'000, std::nullopt, false);
  ASSERT_EQ(id.code(), ErrorCode::kMetadata);
  EXPECT_THAT(id.error().context, HasSubstr("locked for 50 ms"));
  EXPECT_TRUE(hasty->Poll().ok());  // Readers do not wait.
  holder->Exec("COMMIT");
  EXPECT_TRUE(hasty->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
}

TEST_F(SqliteMetadataTest, AFileThatIsLockedIsOpenedByALaterCall) {
  const metadata::SqliteConnection::BusyLimit limit_ms = 50;
  auto holder = *metadata::SqliteConnection::Open(world_.Path(), limit_ms);
  holder->Exec("BEGIN EXCLUSIVE");
  auto opened = SqliteMetadata::Open("sqlite://" + world_.Path(),
                                     {.keyspace = "ks", .busy_timeout_ms = 20}, world_.runtime());
  ASSERT_TRUE(opened.ok()) << opened.error().ToString();
  EXPECT_EQ((*opened)->Poll().code(), ErrorCode::kMetadata);
  holder->Exec("COMMIT");
  EXPECT_TRUE((*opened)->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
}

TEST_F(SqliteMetadataTest, TheLimitOfTheFarewellEndsTheWaitForALock) {
  const metadata::SqliteConnection::BusyLimit limit_ms = 50;
  auto holder = *metadata::SqliteConnection::Open(world_.Path(), limit_ms);
  holder->Exec("BEGIN IMMEDIATE");
  store_->EndBy(world_.runtime().NowMs() + 20);
  Result<NodeId> id = store_->Acquire(Named("n"), 60'000, std::nullopt, false);
  ASSERT_EQ(id.code(), ErrorCode::kMetadata);
  EXPECT_THAT(id.error().context, HasSubstr("locked for 20 ms"));
  holder->Exec("COMMIT");
  EXPECT_TRUE(store_->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
}

TEST_F(SqliteMetadataTest, ADamagedFileIsNamedWithTheWayOutAndWorksOnceItIsDeleted) {
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(store_->Acquire(Named("n" + std::to_string(i)), 60'000, std::nullopt, false).ok());
  }
  store_.reset();  // Takes the log into the file.
  {
    std::fstream file(world_.Path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    file << std::string(16384, '\xaa');
  }
  auto store = SqliteMetadata::Open("sqlite://" + world_.Path(), {"ks"}, world_.runtime());
  const Status status = store.ok() ? Status((*store)->ReadChanges(0).error()) : store.error();
  ASSERT_EQ(status.code(), ErrorCode::kMetadata);
  EXPECT_THAT(status.error().context,
              ::testing::AllOf(HasSubstr("meta.db"), HasSubstr("once it is deleted")));
  world_.Forget();
  auto fresh = world_.Connect("ks");
  EXPECT_TRUE(fresh->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
}

// What an Acquire says in a child process that `limits` has taken something from.
std::string RefusalIn(const std::string& path, const std::function<void()>& limits) {
  int text[2];
  if (pipe(text) != 0) return "";
  const pid_t child = fork();
  if (child == 0) {
    limits();
    ManualRuntime runtime;
    auto store = SqliteMetadata::Open("sqlite://" + path, {"ks"}, runtime);
    std::string said = store.ok() ? "" : store.error().ToString();
    for (int i = 0; store.ok() && said.empty() && i < 1000; ++i) {
      const LeaseRecord record = Named("n" + std::to_string(i));
      const auto id = (*store)->Acquire(record, 60'000, std::nullopt, false);
      if (!id.ok()) said = id.error().ToString();
    }
    _exit(write(text[1], said.data(), said.size()) < 0);
  }
  close(text[1]);
  std::string said;
  for (char c = 0; read(text[0], &c, 1) == 1;) said += c;
  close(text[0]);
  waitpid(child, nullptr, 0);
  return said;
}

TEST_F(SqliteMetadataTest, AFileThatMayOnlyBeReadIsNamed) {
  store_.reset();
  const fs::path folder = fs::path(world_.Path()).parent_path();
  fs::permissions(folder.parent_path().parent_path(), fs::perms(0755));
  fs::permissions(world_.Path(), fs::perms(0444));
  fs::permissions(folder, fs::perms(0555));
  const std::string said = RefusalIn(world_.Path(), [] {
    if (getuid() == 0 && setuid(65534) != 0) _exit(1);  // Root may write anything.
  });
  EXPECT_THAT(said, ::testing::AllOf(HasSubstr("Metadata: sqlite: "), HasSubstr("meta.db"),
                                     HasSubstr("readonly")));
  fs::permissions(folder, fs::perms(0755));
  fs::permissions(world_.Path(), fs::perms(0644));
}

TEST_F(SqliteMetadataTest, NoRoomToWriteIsNamedAndHarmsNoOtherProcess) {
  ASSERT_TRUE(store_->Acquire(Named("other"), 60'000, std::nullopt, false).ok());
  const std::string said = RefusalIn(world_.Path(), [] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 100'000, .rlim_max = 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  EXPECT_THAT(said, ::testing::AllOf(HasSubstr("meta.db"), HasSubstr("disk")));
  EXPECT_GE(store_->ReadChanges(0).value_or({}).leases.size(), 1u);
  EXPECT_TRUE(store_->Acquire(Named("more"), 60'000, std::nullopt, false).ok());
}

}  // namespace
}  // namespace mooncake::testing
