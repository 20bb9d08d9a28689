//! Clients authenticated by a TLS certificate. TLS has already verified the chain and the validity; this module maps
//! the certificate to a name and a role.

use crate::binding::{BadAgentName, bind, check_agent_name, external_role};
use crate::patterns::Pattern;
use crate::{AuthRefusal, Authenticator, Credential, Identity, Qualifier, Rights, Standing};
use bytestring::ByteString;
use std::time::{Duration, UNIX_EPOCH};
use toolbus_protocol::{ErrorCode, check_name};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// The table `[auth.certificates]`.
#[derive(Debug, Clone, PartialEq)]
pub struct CertificateConfig {
    /// The certificate field that contains the agent's name.
    pub name: NameField,
    /// Required prefix of that field, stripped from the name.
    pub prefix: String,
    /// Put before the name.
    pub qualifier: Qualifier,
    /// Roles by name pattern; the first match wins.
    pub roles: Vec<(Pattern, String)>,
    /// Whether the certificate's OU is the role if no pattern matches.
    pub role_from_unit: bool,
    /// Patterns of names that may act as hosts.
    pub hosts: Vec<Pattern>,
}

/// The certificate field that contains the agent's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NameField {
    /// The subject's common name.
    #[default]
    CommonName,
    /// A DNS name among the subject alternative names.
    Dns,
    /// A URI among the subject alternative names.
    Uri,
    /// An email address among the subject alternative names.
    Email,
}

/// Authenticates clients by their TLS certificate.
pub struct CertificateAuthenticator {
    config: CertificateConfig,
}

impl CertificateAuthenticator {
    /// An authenticator with this configuration.
    pub fn new(config: CertificateConfig) -> Self {
        Self { config }
    }

    pub(crate) fn qualifier(&self) -> &Qualifier {
        &self.config.qualifier
    }

    fn name(&self, certificate: &X509Certificate<'_>) -> Result<String, AuthRefusal> {
        let found = fields(certificate, self.config.name);
        // With several names it is ambiguous which one is meant.
        let [name] = &found[..] else {
            return Err(unusable(format!("it has {} names in the configured field, expected one", found.len())));
        };
        let name = name.strip_prefix(self.config.prefix.as_str());
        let name = name.ok_or_else(|| unusable(format!("its name does not start with {:?}", self.config.prefix)))?;
        check_agent_name(name).map_err(bad_name)?;
        Ok(name.to_owned())
    }

    fn role(&self, name: &str, certificate: &X509Certificate<'_>) -> Result<Option<ByteString>, AuthRefusal> {
        let by_name = self.config.roles.iter().find(|(pattern, _)| pattern.matches(name));
        if let Some((_, role)) = by_name {
            return Ok(Some(role.as_str().into()));
        }
        let units: Vec<&str> =
            certificate.subject().iter_organizational_unit().filter_map(|unit| unit.as_str().ok()).collect();
        let [unit] = units[..] else { return Ok(None) };
        if !self.config.role_from_unit {
            return Ok(None);
        }
        check_name(unit).map_err(|error| unusable(format!("its OU is not a valid role: {error}")))?;
        Ok(external_role(unit.to_owned()).map(ByteString::from))
    }
}

impl Authenticator for CertificateAuthenticator {
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let der = credential.certificate.ok_or_else(AuthRefusal::unknown)?;
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| unusable("it can't be parsed".into()))?;
        let name = self.name(&certificate)?;
        let role = self.role(&name, &certificate)?;
        let end = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
        let standing = UNIX_EPOCH.checked_add(Duration::from_secs(end)).map_or_else(Standing::forever, Standing::until);
        if standing.ended().is_some() {
            return Err(AuthRefusal::new(ErrorCode::CredentialExpired, "the client certificate has expired"));
        }
        let agent = self.config.qualifier.qualify(&name).map_err(bad_name)?;
        let rights = Rights { host: self.is_host(&agent), ..Rights::WORKER };
        let agent = bind(&agent, role.as_ref(), credential.claimed)?;
        Ok(Identity { agent, rights, standing, incarnation: 0 })
    }

    fn is_host(&self, agent: &str) -> bool {
        let name = self.config.qualifier.strip(agent);
        name.is_some_and(|name| self.config.hosts.iter().any(|pattern| pattern.matches(name)))
    }
}

fn fields(certificate: &X509Certificate<'_>, field: NameField) -> Vec<String> {
    if field == NameField::CommonName {
        let names = certificate.subject().iter_common_name();
        return names.filter_map(|name| name.as_str().ok()).map(str::to_owned).collect();
    }
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else { return Vec::new() };
    let of_kind = |name: &GeneralName<'_>| match (name, field) {
        (GeneralName::DNSName(name), NameField::Dns) => Some((*name).to_owned()),
        (GeneralName::URI(name), NameField::Uri) => Some((*name).to_owned()),
        (GeneralName::RFC822Name(name), NameField::Email) => Some((*name).to_owned()),
        _ => None,
    };
    alternatives.value.general_names.iter().filter_map(of_kind).collect()
}

fn bad_name(error: BadAgentName) -> AuthRefusal {
    unusable(format!("its name is not a valid agent name: {error}"))
}

fn unusable(reason: String) -> AuthRefusal {
    AuthRefusal::new(ErrorCode::BadCredentials, format!("the client certificate can't be used: {reason}"))
}
