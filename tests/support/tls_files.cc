#include "support/tls_files.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace mooncake::testing {
namespace {

struct Identity {
  std::shared_ptr<EVP_PKEY> key;
  std::shared_ptr<X509> certificate;
};

void AddExtension(X509* certificate, int kind, const char* value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// Signed by `issuer`, or by itself.
Identity NewIdentity(const char* name, const Identity* issuer) {
  Identity self{{EVP_EC_gen("P-256"), EVP_PKEY_free}, {X509_new(), X509_free}};
  X509* certificate = self.certificate.get();
  static long serial = 0;
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 24 * 3600);
  X509_set_pubkey(certificate, self.key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  const Identity& signer = issuer == nullptr ? self : *issuer;
  X509_set_issuer_name(certificate, X509_get_subject_name(signer.certificate.get()));
  if (issuer == nullptr) {
    AddExtension(certificate, NID_basic_constraints, "critical,CA:TRUE");
  } else {
    AddExtension(certificate, NID_subject_alt_name, "IP:127.0.0.1,DNS:the-server");
    AddExtension(certificate, NID_ext_key_usage, "serverAuth,clientAuth");
  }
  X509_sign(certificate, signer.key.get(), EVP_sha256());
  return self;
}

void Save(const Identity& identity, const std::filesystem::path& path, bool with_key) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return;
  PEM_write_X509(file, identity.certificate.get());
  if (with_key) {
    PEM_write_PrivateKey(file, identity.key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  }
  std::fclose(file);
}

}  // namespace

TlsFiles::TlsFiles() {
  std::string pattern = (std::filesystem::temp_directory_path() / "mooncake-tls-XXXXXX").string();
  folder_ = mkdtemp(pattern.data());
  const Identity ca = NewIdentity("a test's authority", nullptr);
  Save(ca, this->ca(), false);
  Save(NewIdentity("another authority", nullptr), other_ca(), false);
  Save(NewIdentity("the-server", &ca), server(), true);
  Save(NewIdentity("the-client", &ca), client(), true);
}

TlsFiles::~TlsFiles() { std::filesystem::remove_all(folder_); }

}  // namespace mooncake::testing
