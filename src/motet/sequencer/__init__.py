"""The sequencer: a process that is one site, alone or of a line of several.

Lives here
    config       the configuration of a site
    core         the machine of `protocol/sequencing`, composed with the links of `protocol/link`
    durable      the half of it that only facts change
    pair         the two replicas of a site: what the standby has, who leads
    seat         what one replica knows of that, durably
    witness      the machine that grants who leads, and its folder
    records      facts and image of a site, as bytes
    machine      what founds a site, for the code of folders
    service      one site, or a witness, as a process, or within another one, from its folder
    sites_file   files that describe several sites

May import: `motet.protocol`; `service` and `sites_file` also the driver and the folder of brokers,
and `motet.runtime`.

Must never: let a frame leave before the facts behind it are durable; know an event service.

Invariants owned here
    - A site starts only with the line, the mode and the placement that it was founded with.
    - Opening a folder restores the site as it was: no number is given twice, none is forgotten.
    - Nothing leaves a primary before the standby that is in step has it; a standby leads, and a
      primary goes on alone, only by a grant.

Test only this room: `pytest tests/unit/sequencer tests/unit/sequencing`
"""
