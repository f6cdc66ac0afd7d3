// A certificate authority of a test's own, with a server's and a client's certificate, as PEM
// files in a folder that goes with the object. `other_ca` is one that signed nothing here.
#pragma once

#include <filesystem>
#include <string>

namespace mooncake::testing {

class TlsFiles {
 public:
  TlsFiles();
  ~TlsFiles();
  TlsFiles(const TlsFiles&) = delete;
  TlsFiles& operator=(const TlsFiles&) = delete;

  std::string ca() const { return (folder_ / "ca.pem").string(); }
  std::string other_ca() const { return (folder_ / "other-ca.pem").string(); }
  // Certificate and key in one file. The server's is for 127.0.0.1 and for "the-server".
  std::string server() const { return (folder_ / "server.pem").string(); }
  std::string client() const { return (folder_ / "client.pem").string(); }

 private:
  std::filesystem::path folder_;
};

}  // namespace mooncake::testing
